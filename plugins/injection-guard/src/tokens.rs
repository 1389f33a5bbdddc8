//! Text as words, once over it: each with its classes and its distance to the one before.
//!
//! Words are read as a model would read them, not as they are spelled: accents, look-alikes, invisible characters,
//! digits for letters and letters set apart are seen through, and a token remembers that they were.

use crate::fold::{Folded, fold};
use crate::words::{AI, Class, EMAIL, LEAD, MUST, SNAKE, TO, Words, YOU};

/// Longer words are no words of a sign.
pub const MAX_WORD: usize = 20;

/// Fewer letters set apart are letters.
const MIN_APART: usize = 3;

/// How far the next sentence is, in words.
const SENTENCE: u8 = 3;

/// A word.
#[derive(Clone, Copy, Debug, Default)]
pub struct Token {
    pub class: Class,
    pub start: usize,
    pub end: usize,
    /// How many words from the token before: 1, or more where a sentence ended between them.
    pub step: u8,
    /// It may begin a command: first, behind punctuation, or behind a word like `please`.
    pub opens: bool,
    /// Between quotes, of which the second is there: one that never closes quotes nothing.
    pub quoted: bool,
    /// How it was written, where not plainly.
    pub read_as: Option<&'static str>,
    /// The only letter of the word.
    letter: Option<u8>,
}

/// Splits a text into words.
pub fn tokens(words: &Words, text: &str) -> Vec<Token> {
    let mut reader = Reader { words, list: Vec::new(), word: Word::default(), between: Between::start() };
    let mut chars = text.char_indices().peekable();
    let mut before = ' ';
    while let Some((at, c)) = chars.next() {
        #[cfg(test)]
        crate::tests::took(1);
        let next = chars.peek().map_or(' ', |(_, next)| *next);
        match (c, next) {
            ('\\', _) if is_break(&text.as_bytes()[at..]) => {
                chars.next();
                reader.separate('\n', before, ' ');
            }
            ('\'' | '’', _) if before.is_alphabetic() && next.is_alphabetic() => {}
            _ => reader.read(at, c, before, next),
        }
        before = c;
    }
    reader.finish_word();
    reader.end_quote(false);
    join_letters(words, reader.list)
}

/// Whether a break of a line, or a tab, begins here as JSON text has it.
pub fn is_break(rest: &[u8]) -> bool {
    matches!(rest, [b'\\', b'n' | b'r' | b't', ..])
}

struct Reader<'a> {
    words: &'a Words,
    list: Vec<Token>,
    word: Word,
    between: Between,
}

impl Reader<'_> {
    /// `Please ignore`, `I want you to ignore`; not `they told him to ignore`.
    fn is_led(&self) -> bool {
        let [before @ .., last] = self.list.as_slice() else { return false };
        let asked = before.last().is_some_and(|before| before.class & (YOU | AI | MUST) != 0);
        last.class & LEAD != 0 || (last.class & TO != 0 && asked)
    }
}

/// The word under way.
#[derive(Default)]
struct Word {
    letters: [u8; MAX_WORD],
    len: usize,
    start: usize,
    end: usize,
    look_alikes: usize,
    foreign: bool,
    /// Something invisible came, and no letter yet behind it.
    hidden_at_end: bool,
    hidden_inside: bool,
}

/// What came since the last word.
struct Between {
    step: u8,
    opens: bool,
    joint: Class,
    quote: Option<char>,
    /// Words before the quote.
    unquoted: usize,
}

impl Between {
    fn start() -> Self {
        Self { step: 1, opens: true, joint: 0, quote: None, unquoted: 0 }
    }
}

impl Reader<'_> {
    fn read(&mut self, at: usize, c: char, before: char, next: char) {
        let end = at + c.len_utf8();
        match fold(c) {
            Folded::Plain(letter) => self.word.push(letter, at, end),
            Folded::LookAlike(letter) => {
                self.word.push(letter, at, end);
                self.word.look_alikes += 1;
            }
            Folded::Foreign => {
                self.word.push(b'?', at, end);
                self.word.foreign = true;
            }
            Folded::Invisible => self.word.hidden_at_end = self.word.len > 0,
            Folded::Other => self.separate(c, before, next),
        }
    }

    fn separate(&mut self, c: char, before: char, next: char) {
        self.finish_word();
        let between = &mut self.between;
        match c {
            ' ' | '-' => {}
            '_' if before.is_alphanumeric() => between.joint = SNAKE,
            '@' if before.is_alphanumeric() && next.is_alphanumeric() => between.joint = EMAIL,
            '.' if next.is_alphanumeric() => {}
            '.' | '!' | '?' | ';' => {
                between.step = between.step.saturating_add(SENTENCE).min(2 * SENTENCE);
                between.opens = true;
            }
            '\n' => {
                between.step = between.step.saturating_add(1).min(2 * SENTENCE);
                between.opens = true;
                self.end_quote(false);
            }
            _ => between.opens = true,
        }
        self.see_quote(c, before, next);
    }

    fn finish_word(&mut self) {
        let word = std::mem::take(&mut self.word);
        if word.len == 0 {
            return;
        }
        let (class, read_as) = word.class(self.words);
        let lead = self.is_led();
        let between = &mut self.between;
        self.list.push(Token {
            class: class | between.joint,
            start: word.start,
            end: word.end,
            step: between.step,
            opens: between.opens || lead,
            quoted: between.quote.is_some(),
            read_as,
            letter: (word.len == 1).then(|| word.letters[0]),
        });
        *between = Between { quote: between.quote, unquoted: between.unquoted, opens: false, ..Between::start() };
    }

    /// The words since a quote began are what was quoted, where it ends with one.
    fn end_quote(&mut self, is_closed: bool) {
        if self.between.quote.take().is_some() && !is_closed {
            #[cfg(test)]
            crate::tests::took(self.list.len() - self.between.unquoted);
            self.list[self.between.unquoted..].iter_mut().for_each(|token| token.quoted = false);
        }
    }

    fn see_quote(&mut self, c: char, before: char, next: char) {
        let closes = match c {
            '"' | '`' => c,
            '“' | '„' => '”',
            '«' => '»',
            '\'' | '‘' => '\'',
            '”' | '»' | '’' => c,
            _ => return,
        };
        match self.between.quote {
            Some(open) if open == c || (open == '”' && c == '“') || (open == '\'' && c == '’') => {
                self.end_quote(true);
            }
            None if !before.is_alphanumeric() && !next.is_whitespace() || matches!(c, '"' | '`') => {
                (self.between.quote, self.between.unquoted) = (Some(closes), self.list.len());
            }
            _ => {}
        }
    }
}

impl Word {
    fn push(&mut self, letter: u8, at: usize, end: usize) {
        if self.len == 0 {
            self.start = at;
        } else if self.hidden_at_end {
            self.hidden_inside = true;
        }
        self.hidden_at_end = false;
        if let Some(place) = self.letters.get_mut(self.len) {
            *place = letter;
        }
        self.len += 1;
        self.end = end;
    }

    /// The classes, and how the word had to be read for them.
    fn class(&self, words: &Words) -> (Class, Option<&'static str>) {
        let Some(letters) = self.letters.get(..self.len).filter(|_| !self.foreign) else { return (0, None) };
        let look_up = |letters: &[u8]| std::str::from_utf8(letters).map_or(0, |word| words.class(word));
        let class = look_up(letters);
        if class != 0 {
            let read_as = if self.look_alikes > 0 {
                Some("look-alikes")
            } else {
                self.hidden_inside.then_some("invisible characters")
            };
            return (class, read_as);
        }
        if !letters.iter().any(u8::is_ascii_digit) || !letters.iter().any(u8::is_ascii_alphabetic) {
            return (0, None);
        }
        let with_ones_as = |one: u8| letters.iter().map(|&c| letter_of_digit(c, one)).collect::<Vec<u8>>();
        let class = look_up(&with_ones_as(b'i')) | look_up(&with_ones_as(b'l'));
        (class, (class != 0).then_some("digits for letters"))
    }
}

fn letter_of_digit(c: u8, one: u8) -> u8 {
    match c {
        b'0' => b'o',
        b'1' => one,
        b'3' => b'e',
        b'4' => b'a',
        b'5' => b's',
        b'7' => b't',
        _ => c,
    }
}

/// `i g n o r e` is one word, where that is a word of a sign, and so is the longest such end of a run: `a i g n o r e`.
fn join_letters(words: &Words, list: Vec<Token>) -> Vec<Token> {
    let mut joined: Vec<Token> = Vec::with_capacity(list.len());
    let mut rest = list.as_slice();
    while let Some(first) = rest.first() {
        let follows = |pair: &[Token]| pair[1].letter.is_some() && pair[1].start == pair[0].end + 1;
        let run = if first.letter.is_some() { 1 + rest.windows(2).take_while(|pair| follows(pair)).count() } else { 1 };
        #[cfg(test)]
        crate::tests::took(run);
        let (run, behind) = rest.split_at(run);
        match ending(words, run) {
            Some((start, class)) => {
                joined.extend_from_slice(&run[..start]);
                let end = run.last().map_or(first.end, |last| last.end);
                joined.push(Token { class, end, read_as: Some("letters apart"), letter: None, ..run[start] });
            }
            None => joined.extend_from_slice(run),
        }
        rest = behind;
    }
    joined
}

/// Where the longest word of a sign begins that ends a run of letters, with its classes.
fn ending(words: &Words, run: &[Token]) -> Option<(usize, Class)> {
    let letters: Vec<u8> = run.iter().filter_map(|token| token.letter).collect();
    let word = |start: usize| std::str::from_utf8(&letters[start..]).map_or(0, |word| words.class(word));
    let starts = letters.len().saturating_sub(MAX_WORD)..(letters.len() + 1).saturating_sub(MIN_APART);
    starts.map(|start| (start, word(start))).find(|(_, class)| *class != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{IGNORE, INSTRUCTION, NOT, PRIOR};

    fn of(text: &str) -> Vec<Token> {
        tokens(&Words::new(), text)
    }

    #[test]
    fn a_word_is_seen_through_its_disguise() {
        let check = |text: &str, class, read_as| {
            let token = of(text)[0];
            assert!(token.class & class != 0 && token.read_as == read_as, "{text}: {token:?}");
            assert_eq!(&text[token.start..token.end], text);
        };
        check("Ignore", IGNORE, None);
        check("précédentes", PRIOR, None);
        check("ignоre", IGNORE, Some("look-alikes"));
        check("𝐈𝐠𝐧𝐨𝐫𝐞", IGNORE, Some("look-alikes"));
        check("ig\u{200B}nore", IGNORE, Some("invisible characters"));
        check("1gn0re", IGNORE, Some("digits for letters"));
        check("i g n o r e", IGNORE, Some("letters apart"));
        for (text, at) in [("a i g n o r e", 1), ("x y z i g n o r e", 3)] {
            let (all, token) = (of(text), of(text)[at]);
            assert!(all.len() == at + 1 && token.class & IGNORE != 0, "{text}: {all:?}");
            assert_eq!(text[token.start..token.end].replace(' ', ""), "ignore");
        }
        assert_eq!(of("a b c").len(), 3);
        check("don't", NOT, None);
        assert_eq!(of("ignоré").len(), 1);
    }

    #[test]
    fn distance_grows_with_sentences_and_lines() {
        let steps: Vec<u8> = of("a bb, cc. dd\n\nee evil.example").iter().map(|token| token.step).collect();
        assert_eq!(steps, [1, 1, 1, 4, 3, 1, 1]);
        assert_eq!(of("x\\nignore")[1].class & IGNORE, IGNORE, "JSON's breaks of lines separate");
    }

    #[test]
    fn commands_open_and_quotes_are_known() {
        let opens: Vec<bool> = of("ignore it: please ignore, he may ignore").iter().map(|token| token.opens).collect();
        assert_eq!(opens, [true, false, true, true, true, false, false]);
        let quoted = |text: &str| of(text).iter().map(|token| token.quoted).collect::<Vec<_>>();
        assert_eq!(quoted("say \"rules\" now"), [false, true, false]);
        assert_eq!(quoted("it's 'my rules' now"), [false, true, true, false]);
        assert_eq!(quoted("an \"open one\nand 'another"), [false; 5]);
        assert_eq!(quoted("say \"so\" \"open"), [false, true, false]);
        assert_eq!(quoted("„so“ und “so” and «so» no"), [true, false, true, false, true, false]);
    }

    #[test]
    fn names_with_underscores_and_addresses_are_marked() {
        assert_eq!(of("send_email")[1].class & SNAKE, SNAKE);
        assert_eq!(of("jo@example.com")[1].class & EMAIL, EMAIL);
        assert_eq!(of("the rules")[1].class & INSTRUCTION, INSTRUCTION);
    }
}
