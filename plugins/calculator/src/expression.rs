//! Expressions: parsed and evaluated in one pass, precedence by recursive descent.
//!
//! ```text
//! sum     = product { ("+" | "-") product }
//! product = signed { ("*" | "/" | "%") signed }
//! signed  = ["-" | "+"] signed | power
//! power   = atom ["^" signed]                       2^3^2 is 2^(3^2), -2^2 is -(2^2)
//! atom    = number | constant | name "(" sum {"," sum} ")" | "(" sum ")"
//! ```
//!
//! Invariant: recursion is at most [`MAX_DEPTH`] deep whatever the text.

use crate::number::Number;

/// Longest expression, in bytes.
pub const MAX_BYTES: usize = 4096;
/// Deepest nesting of parentheses, signs and powers.
pub const MAX_DEPTH: usize = 64;

/// The value of an expression.
///
/// # Errors
/// What is wrong with it and where, in words for the model.
pub fn evaluate(text: &str) -> Result<Number, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("the expression has {} bytes; at most {MAX_BYTES} are evaluated", text.len()));
    }
    let mut parser = Parser { text, at: 0, depth: 0 };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(value),
        Some(found) => Err(parser.unexpected(found, "an operator or the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn sum(&mut self) -> Result<Number, String> {
        let mut value = self.product()?;
        while let Some(sign) = self.eat_any(&[('+', "+"), ('-', "-"), ('-', "−")]) {
            let right = self.product()?;
            value = if sign == '+' { value.plus(right)? } else { value.minus(right)? };
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<Number, String> {
        let mut value = self.signed()?;
        loop {
            if self.rest().starts_with("**") {
                return Ok(value);
            }
            let signs = [('*', "*"), ('*', "×"), ('*', "·"), ('/', "/"), ('/', "÷"), ('%', "%")];
            let Some(sign) = self.eat_any(&signs) else { return Ok(value) };
            let right = self.signed()?;
            value = match sign {
                '*' => value.times(right)?,
                '/' => value.over(right)?,
                _ => value.modulo(right)?,
            };
        }
    }

    fn signed(&mut self) -> Result<Number, String> {
        self.descend()?;
        let value = match self.eat_any(&[('+', "+"), ('-', "-"), ('-', "−")]) {
            Some('-') => self.signed()?.negate(),
            Some(_) => self.signed()?,
            None => self.power()?,
        };
        self.depth -= 1;
        Ok(value)
    }

    fn power(&mut self) -> Result<Number, String> {
        let base = self.atom()?;
        match self.eat_any(&[('^', "^"), ('^', "**")]) {
            Some(_) => base.power(self.signed()?),
            None => Ok(base),
        }
    }

    fn atom(&mut self) -> Result<Number, String> {
        match self.peek() {
            Some('(') => self.group(),
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_ascii_alphabetic() => self.named(),
            Some('π') => {
                self.at += 'π'.len_utf8();
                Ok(Number::Real(std::f64::consts::PI))
            }
            Some(found) => Err(self.unexpected(found, "a number")),
            None => Err("the expression ends where a number should follow".into()),
        }
    }

    fn group(&mut self) -> Result<Number, String> {
        self.expect('(')?;
        let value = self.sum()?;
        self.expect(')')?;
        Ok(value)
    }

    fn number(&mut self) -> Result<Number, String> {
        let digits = self.take_while(|c| c.is_ascii_digit() || c == '.');
        if digits == "." || digits.matches('.').count() > 1 {
            return Err(format!("`{digits}` is not a number"));
        }
        Number::literal(digits, self.exponent())
    }

    /// `e` with digits right behind a number, as in `1.5e-3`; anything else is left alone.
    fn exponent(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let Some(tail) = rest.strip_prefix(['e', 'E']) else { return "" };
        let unsigned = tail.strip_prefix(['+', '-']).unwrap_or(tail);
        let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return "";
        }
        let len = rest.len() - unsigned.len() + digits;
        self.at += len;
        &rest[..len]
    }

    fn named(&mut self) -> Result<Number, String> {
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_').to_ascii_lowercase();
        if self.peek() != Some('(') {
            return match name.as_str() {
                "pi" => Ok(Number::Real(std::f64::consts::PI)),
                "e" => Ok(Number::Real(std::f64::consts::E)),
                _ => Err(format!("unknown name `{name}`; constants are pi and e, and functions need parentheses")),
            };
        }
        let arguments = self.arguments()?;
        apply(&name, &arguments)
    }

    fn arguments(&mut self) -> Result<Vec<Number>, String> {
        self.expect('(')?;
        let mut arguments = vec![self.sum()?];
        while self.eat_any(&[(',', ",")]).is_some() {
            arguments.push(self.sum()?);
        }
        self.expect(')')?;
        Ok(arguments)
    }

    fn descend(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("the expression is nested more than {MAX_DEPTH} levels deep"));
        }
        Ok(())
    }

    fn rest(&mut self) -> &'a str {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest
    }

    fn peek(&mut self) -> Option<char> {
        self.rest().chars().next()
    }

    fn eat_any(&mut self, signs: &[(char, &str)]) -> Option<char> {
        let rest = self.rest();
        let (meaning, spelling) = signs.iter().find(|(_, spelling)| rest.starts_with(spelling))?;
        self.at += spelling.len();
        Some(*meaning)
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        match self.peek() {
            Some(found) if found == wanted => {
                self.at += wanted.len_utf8();
                Ok(())
            }
            Some(found) => Err(self.unexpected(found, &format!("`{wanted}`"))),
            None => Err(format!("the expression ends where `{wanted}` should follow")),
        }
    }

    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let len = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn unexpected(&self, found: char, wanted: &str) -> String {
        let column = self.text[..self.at].chars().count() + 1;
        format!("`{found}` at character {column} where {wanted} should be")
    }
}

fn apply(name: &str, arguments: &[Number]) -> Result<Number, String> {
    let real = |f: fn(f64) -> f64, x: Number| Number::real(f(x.to_f64()));
    match (name, arguments) {
        ("min", all) => Ok(pick(all, std::cmp::Ordering::Less)),
        ("max", all) => Ok(pick(all, std::cmp::Ordering::Greater)),
        ("round", [x, places]) => round_to(*x, *places),
        ("sqrt", [x]) => x.sqrt(),
        ("abs", [x]) => Ok(x.abs()),
        ("round", [x]) => Ok(x.round()),
        ("floor", [x]) => Ok(x.floor()),
        ("ceil", [x]) => Ok(x.ceil()),
        ("ln" | "log10", [x]) if x.to_f64() <= 0.0 => Err(format!("{name} needs a number above zero")),
        ("ln", [x]) => real(f64::ln, *x),
        ("log10", [x]) => real(f64::log10, *x),
        ("exp", [x]) => real(f64::exp, *x),
        ("sin", [x]) => real(f64::sin, *x),
        ("cos", [x]) => real(f64::cos, *x),
        ("tan", [x]) => real(f64::tan, *x),
        ("sqrt" | "abs" | "round" | "floor" | "ceil" | "ln" | "log10" | "exp" | "sin" | "cos" | "tan", _) => {
            Err(format!("{name} takes one number, not {}", arguments.len()))
        }
        _ => Err(format!(
            "unknown function `{name}`; there are sqrt, abs, min, max, round, floor, ceil, ln, log10, exp, sin, cos, tan"
        )),
    }
}

/// `arguments` is not empty: the grammar asks for one.
fn pick(arguments: &[Number], wanted: std::cmp::Ordering) -> Number {
    let better = |best: Number, x: &Number| if x.compare(best) == wanted { *x } else { best };
    arguments.iter().fold(arguments[0], better)
}

fn round_to(x: Number, places: Number) -> Result<Number, String> {
    match places {
        Number::Exact { num, den: 1 } if (0..=15).contains(&num) => {
            let scale = Number::whole(10).power(places)?;
            x.times(scale)?.round().over(scale)
        }
        _ => Err("round takes a number of digits from 0 to 15".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> String {
        evaluate(text).map_or_else(|problem| format!("error: {problem}"), |value| value.to_decimal(6))
    }

    #[test]
    fn expressions_have_their_school_values() {
        let check = |text, expected| assert_eq!(value(text), expected, "{text}");
        check("17*23", "391");
        check(" 2 + 3 * 4 ", "14");
        check("(2+3)*4", "20");
        check("10-4-3", "3");
        check("100/8/2", "6.25");
        check("2^3^2", "512");
        check("2**10", "1024");
        check("-2^2", "-4");
        check("(-2)^2", "4");
        check("2^-2", "0.25");
        check("2*-3", "-6");
        check("--5", "5");
        check("17 % 5", "2");
        check("-7 % 3", "2");
        check("7 % -3", "-2");
        check("5.5 % 2", "1.5");
        check("(10^38)%(1/10^10)", "0");
        check("(10^38)%(3/10^10)", "0.0000000001");
        check("(0-10^38)%(3/10^10)", "0.0000000002");
        check("(10^38)%((0-3)/10^10)", "-0.0000000002");
        check("10^38 % 7", "2");
        check("(1/10^30)%(10^38)", "0.000000000000000000000000000001");
        check("5 % (1/3)", "0");
        check("pi % 1", "0.141593");
        check("10^-30 % 10^-31", "0");
        for large in [&format!("1{} % 7", "0".repeat(41)), "2^200 % 7", "7 % 2^200", "pi % 10^-20", "pi^40 % 10"] {
            assert!(value(large).contains("is not exact"), "{large}: {}", value(large));
        }
        check("3×4÷2−1", "5");
        check("0.1+0.2", "0.3");
        check("1/3*3", "1");
        check("10/3", "3.333333");
        check("2/3", "0.666667");
        check("1/30000", "0.0000333333");
        check("1.5e3+1", "1501");
        check(".5+5.", "5.5");
        check("sqrt(144)", "12");
        check("sqrt(2)", "1.414214");
        check("sqrt(0.25)", "0.5");
        check("abs(-3.5)+min(4,2,3)+max(1,9)", "14.5");
        check("round(2.5)+floor(-0.5)+ceil(0.2)", "3");
        check("round(-2.5)", "-3");
        check("round(3.14159, 2)", "3.14");
        check("ln(e)", "1");
        check("log10(1000)", "3");
        check("exp(0)", "1");
        check("sin(0)+cos(0)+tan(0)", "1");
        check("2*pi", "6.283185");
        check("PI", "3.141593");
        check("π", "3.141593");
    }

    #[test]
    fn whole_numbers_are_exact_as_long_as_they_fit() {
        let check = |text, expected| assert_eq!(value(text), expected, "{text}");
        check("2^126", "85070591730234615865843651857942052864");
        check("99999999999999999999*99999999", "9999999899999999999900000001");
        check("12345678901234567890-12345678901234567889", "1");
        check("1e16+1", "10000000000000001");
        check("1.25E+20-1", "124999999999999999999");
        check("1.25e1 - 125e-1", "0");
        check("1e-3*3", "0.003");
        check("3e-20*1e20", "3");
        check("2^127", "1.701412e38");
        check("1e38", "100000000000000000000000000000000000000");
        check("1e39", "1e39");
        check("1e-39", "1e-39");
        check("1e9999999999999999999", "error: the result is too large");
        check("1e-9999999999999999999", "0");
        check("2^1000", "1.071509e301");
        check("1/2^200", "6.223015e-61");
    }

    #[test]
    fn what_has_no_value_says_why() {
        let check = |text: &str, expected: &str| {
            let found = value(text);
            assert!(found.starts_with("error: ") && found.contains(expected), "{text}: {found}");
        };
        check("", "ends where a number should follow");
        check("2+*3", "`*` at character 3");
        check("2 3", "`3` at character 3 where an operator or the end should be");
        check("(2", "ends where `)` should follow");
        check("2)", "`)` at character 2");
        check("1/0", "division by zero");
        check("5%0", "division by zero");
        check("0^-1", "division by zero");
        check("sqrt(-1)", "not a real number");
        check("(-8)^0.5", "not a real number");
        check("ln(0)", "above zero");
        check("10^400", "too large");
        check("2^2^2^2^2^2", "too large");
        check("1.2.3", "`1.2.3` is not a number");
        check("x+1", "unknown name `x`");
        check("sqrt 2", "unknown name `sqrt`");
        check("foo(1)", "unknown function `foo`");
        check("sqrt(1,2)", "takes one number, not 2");
        check("round(1, 99)", "digits from 0 to 15");
        check("1 + ü", "`ü` at character 5");
    }

    #[test]
    fn depth_and_length_are_bounded() {
        assert_eq!(value(&format!("{}1{}", "(".repeat(60), ")".repeat(60))), "1");
        for deep in ["(", "-", "2^", "sqrt("] {
            assert!(value(&deep.repeat(800)).contains("64 levels"), "{deep}");
        }
        assert!(value(&"1+".repeat(2049)).contains("4098 bytes"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[0-9a-z+*/%^()., eE.-]{0,60}|\\PC{0,20}") {
            let _ = value(&text);
        }

        #[test]
        fn whole_numbers_agree_with_the_machines(a in -1_000_000i64..1_000_000, b in -1_000_000i64..1_000_000) {
            prop_assert_eq!(value(&format!("({a})*({b})-({a})")), (a * b - a).to_string());
            if b != 0 {
                let floored = a.rem_euclid(b.abs());
                let expected = if floored != 0 && b < 0 { floored + b } else { floored };
                prop_assert_eq!(value(&format!("({a})%({b})")), expected.to_string());
            }
        }

        #[test]
        fn decimals_agree_with_doubles(a in -1000i32..1000, b in 1i32..1000, op in "[-+*/]") {
            let exact = evaluate(&format!("{}{op}{}", f64::from(a) / 8.0, f64::from(b) / 4.0)).unwrap().to_f64();
            let (x, y) = (f64::from(a) / 8.0, f64::from(b) / 4.0);
            let expected = match op.as_str() { "+" => x + y, "-" => x - y, "*" => x * y, _ => x / y };
            prop_assert!((exact - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{exact} {expected}");
        }
    }
}
