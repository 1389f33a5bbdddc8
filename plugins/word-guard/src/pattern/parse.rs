//! The notation: text to tree.
//!
//! ```text
//! either   = sequence { "|" sequence }
//! sequence = { atom [ "?" | "*" | "+" | "{n}" | "{n,}" | "{n,m}" ] }
//! atom     = "(" either ")" | "(?:" either ")" | "[" class "]" | "." | escape | character
//! escape   = \d \D \w \W \s \S \b \n \t \r \xHH, or a character that would mean something else
//! ```

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    Empty,
    One(Class),
    /// `\b`: a border of a word.
    Border,
    Sequence(Vec<Tree>),
    Either(Vec<Tree>),
    Repeat {
        tree: Box<Tree>,
        min: usize,
        max: Option<usize>,
    },
}

/// A set of characters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Class {
    pub(super) ranges: Vec<(char, char)>,
    pub(super) kinds: Vec<Kind>,
    pub(super) is_negated: bool,
}

/// A named set, or all but it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Digit(bool),
    Word(bool),
    Space(bool),
}

const MAX_DEPTH: usize = 32;
const MAX_REPEAT: usize = 480;

pub(super) fn parse(text: &str) -> Result<Tree, String> {
    let mut parser = Parser { rest: text, depth: 0 };
    let tree = parser.either()?;
    match parser.peek() {
        None => Ok(tree),
        Some(_) => Err("`)` without `(`; write `\\)` for the character".into()),
    }
}

impl Tree {
    /// Bytes of the shortest match; no match has fewer.
    pub(super) fn min_bytes(&self, ignore_case: bool) -> usize {
        let of = |tree: &Self| tree.min_bytes(ignore_case);
        match self {
            Self::Empty | Self::Border => 0,
            Self::One(class) => class.min_bytes(ignore_case),
            Self::Sequence(trees) => trees.iter().map(of).fold(0, usize::saturating_add),
            Self::Either(trees) => trees.iter().map(of).min().unwrap_or(0),
            Self::Repeat { tree, min, .. } => of(tree).saturating_mul(*min),
        }
    }

    /// Bytes of the longest match that goes through no repetition without an end; `None` where every one does. Where a repetition may be
    /// left out, one goes past it.
    pub(super) fn max_bytes(&self) -> Option<usize> {
        match self {
            Self::Empty | Self::Border => Some(0),
            Self::One(class) => Some(class.max_bytes()),
            Self::Sequence(trees) => {
                trees.iter().map(Self::max_bytes).try_fold(0, |sum: usize, more| Some(sum.saturating_add(more?)))
            }
            Self::Either(trees) => trees.iter().filter_map(Self::max_bytes).max(),
            Self::Repeat { tree, min, max } => match (tree.max_bytes(), max) {
                (Some(bytes), Some(max)) => Some(bytes.saturating_mul(*max)),
                _ => (*min == 0).then_some(0),
            },
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    fn either(&mut self) -> Result<Tree, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("groups are nested more than {MAX_DEPTH} deep"));
        }
        let mut branches = vec![self.sequence()?];
        while self.eat('|') {
            branches.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(if branches.len() == 1 { branches.remove(0) } else { Tree::Either(branches) })
    }

    fn sequence(&mut self) -> Result<Tree, String> {
        let mut trees = Vec::new();
        while let Some(c) = self.peek().filter(|c| !"|)".contains(*c)) {
            self.next();
            let atom = self.atom(c)?;
            trees.push(self.repeated(atom)?);
        }
        Ok(match trees.len() {
            0 => Tree::Empty,
            1 => trees.remove(0),
            _ => Tree::Sequence(trees),
        })
    }

    fn atom(&mut self, c: char) -> Result<Tree, String> {
        match c {
            '(' => self.group(),
            '[' => Ok(Tree::One(self.class()?)),
            '.' => Ok(Tree::One(Class { ranges: vec![('\n', '\n')], is_negated: true, ..Class::default() })),
            '\\' if self.eat('b') => Ok(Tree::Border),
            '\\' => Ok(Tree::One(self.escape()?)),
            '^' | '$' => Err(format!("anchors such as `{c}` are not supported: a stream has no lines; use `\\b`")),
            '*' | '+' | '?' => Err(format!("`{c}` repeats nothing; write `\\{c}` for the character")),
            '{' | '}' | ']' => Err(format!("`{c}` stands alone; write `\\{c}` for the character")),
            c => Ok(Tree::One(Class::of(c))),
        }
    }

    fn group(&mut self) -> Result<Tree, String> {
        if self.eat('?') && !self.eat(':') {
            return Err("groups `(?` other than `(?:` are not supported".into());
        }
        let tree = self.either()?;
        if self.eat(')') { Ok(tree) } else { Err("`(` without `)`; write `\\(` for the character".into()) }
    }

    fn repeated(&mut self, tree: Tree) -> Result<Tree, String> {
        let (min, max) = match self.peek() {
            Some('?') => (0, Some(1)),
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('{') => self.counts()?,
            _ => return Ok(tree),
        };
        self.next();
        if tree == Tree::Border {
            return Err("`\\b` cannot be repeated".into());
        }
        match self.peek() {
            Some('?' | '+' | '*' | '{') => Err("lazy, possessive and double repetition are not supported".into()),
            _ => Ok(Tree::Repeat { tree: Box::new(tree), min, max }),
        }
    }

    /// Stops before the closing brace.
    fn counts(&mut self) -> Result<(usize, Option<usize>), String> {
        self.next();
        let min = self.number()?;
        let max = match (self.eat(','), self.peek()) {
            (false, _) => Some(min),
            (true, Some('}')) => None,
            (true, _) => Some(self.number()?),
        };
        if self.peek() != Some('}') || max.is_some_and(|max| max < min) {
            return Err("a repetition in braces is `{n}`, `{n,}` or `{n,m}` with n <= m".into());
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Result<usize, String> {
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        match number.parse() {
            Ok(number) if number <= MAX_REPEAT => Ok(number),
            _ => Err(format!("a repetition in braces needs numbers up to {MAX_REPEAT}")),
        }
    }

    fn class(&mut self) -> Result<Class, String> {
        let mut class = Class { is_negated: self.eat('^'), ..Class::default() };
        let mut is_first = true;
        loop {
            let Some(c) = self.next() else { return Err("`[` without `]`; write `\\[` for the character".into()) };
            if c == ']' && !is_first {
                return Ok(class);
            }
            is_first = false;
            let low = match c {
                '\\' => {
                    let escaped = self.escape()?;
                    class.kinds.extend(&escaped.kinds);
                    match escaped.ranges.first() {
                        Some((c, _)) => *c,
                        None => continue,
                    }
                }
                '[' => return Err("`[` inside of `[...]` is not supported; write `\\[` for the character".into()),
                c => c,
            };
            let high = self.range_end(low)?;
            class.ranges.push((low, high));
        }
    }

    /// A hyphen before the closing bracket is a character.
    fn range_end(&mut self, low: char) -> Result<char, String> {
        let mut ahead = self.rest.chars();
        if (ahead.next(), ahead.next()) == (Some('-'), Some(']')) || !self.eat('-') {
            return Ok(low);
        }
        let high = match self.next() {
            Some('\\') => self.escape()?.single(),
            other => other,
        };
        high.filter(|high| low <= *high).ok_or_else(|| format!("the range that starts with `{low}` has no higher end"))
    }

    fn escape(&mut self) -> Result<Class, String> {
        let kind = |kind| Ok(Class { kinds: vec![kind], ..Class::default() });
        match self.next() {
            Some('d') => kind(Kind::Digit(true)),
            Some('D') => kind(Kind::Digit(false)),
            Some('w') => kind(Kind::Word(true)),
            Some('W') => kind(Kind::Word(false)),
            Some('s') => kind(Kind::Space(true)),
            Some('S') => kind(Kind::Space(false)),
            Some('n') => Ok(Class::of('\n')),
            Some('t') => Ok(Class::of('\t')),
            Some('r') => Ok(Class::of('\r')),
            Some('x') => self.hexadecimal(),
            Some(c) if c.is_alphanumeric() => Err(format!("`\\{c}` is not supported")),
            Some(c) => Ok(Class::of(c)),
            None => Err("`\\` at the end; write `\\\\` for the character".into()),
        }
    }

    fn hexadecimal(&mut self) -> Result<Class, String> {
        let digits = self.rest.get(..2).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let c = digits.and_then(char::from_u32).ok_or("`\\x` needs two hexadecimal digits")?;
        self.rest = &self.rest[2..];
        Ok(Class::of(c))
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.next();
        }
        found
    }
}

/// Of white space, as Unicode has it.
const MAX_SPACE_BYTES: usize = '\u{3000}'.len_utf8();

/// Latin letters of three bytes, some of which are of two in the other case.
const SHORTER_IN_OTHER_CASE: [(char, char); 2] = [('\u{2c60}', '\u{2c7f}'), ('\u{a720}', '\u{a7ff}')];

impl Class {
    /// Bytes of the shortest character; no character has fewer.
    pub(super) fn min_bytes(&self, ignore_case: bool) -> usize {
        if self.is_negated || !self.kinds.is_empty() {
            return 1;
        }
        let len = |(low, high): &(char, char)| {
            let shortens = |(from, to): &(char, char)| low <= to && from <= high;
            let is_shorter = ignore_case && SHORTER_IN_OTHER_CASE.iter().any(shortens);
            if is_shorter { low.len_utf8().min(2) } else { low.len_utf8() }
        };
        self.ranges.iter().map(len).min().unwrap_or(1)
    }

    /// Bytes of the longest character, as it is written. In another case one may have more, which few texts have: the Kelvin sign is
    /// a `k`.
    fn max_bytes(&self) -> usize {
        let len = |kind: &Kind| if *kind == Kind::Space(true) { MAX_SPACE_BYTES } else { char::MAX.len_utf8() };
        let named = self.kinds.iter().map(len).chain(self.is_negated.then_some(char::MAX.len_utf8()));
        named.chain(self.ranges.iter().map(|(_, high)| high.len_utf8())).max().unwrap_or(1)
    }

    fn of(c: char) -> Self {
        Self { ranges: vec![(c, c)], ..Self::default() }
    }

    /// The character of a class that has just one.
    fn single(&self) -> Option<char> {
        self.ranges.first().map(|(c, _)| *c).filter(|_| self.kinds.is_empty())
    }
}
