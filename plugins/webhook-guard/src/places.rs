//! Where a text stands in another one, those places too that overlap: of `aXaXa` nothing is left where `aXa` is to go. It is
//! the search of Knuth, Morris and Pratt: its time grows with the sum of both lengths, whatever the texts are, where one that
//! begins again behind each start would take their product.

use std::ops::Range;

/// The places of `find` in `text`, in their order; those that overlap are one. An empty text is nowhere.
pub fn of(find: &str, text: &str) -> Vec<Range<usize>> {
    // Most texts have it nowhere, which the standard library's search says faster.
    let Some(first) = text.find(find).filter(|_| !find.is_empty()) else { return Vec::new() };
    let borders = borders(find.as_bytes());
    if borders.last().is_none_or(|longest| *longest == 0) {
        // It cannot overlap itself, as most texts cannot; then the standard library's search is the faster one.
        return text.match_indices(find).map(|(at, _)| at..at + find.len()).collect();
    }
    let (find, mut matched) = (find.as_bytes(), 0);
    let mut places: Vec<Range<usize>> = Vec::new();
    for (at, byte) in text.bytes().enumerate().skip(first) {
        matched = longer(find, &borders, matched, byte);
        if matched == find.len() {
            let place = at + 1 - matched..at + 1;
            match places.last_mut().filter(|last| last.end > place.start) {
                Some(last) => last.end = place.end,
                None => places.push(place),
            }
        }
    }
    places
}

/// Of each beginning of a text, how long its longest border is: what it both begins and ends with, and is not all of it.
fn borders(find: &[u8]) -> Vec<usize> {
    let mut borders = Vec::with_capacity(find.len());
    let mut matched = 0;
    for (at, byte) in find.iter().enumerate() {
        if at > 0 {
            matched = longer(find, &borders, matched, *byte);
        }
        borders.push(matched);
    }
    borders
}

/// How much of `find` a text ends with that ended with `matched` bytes of it, and has got one byte more.
fn longer(find: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    while matched > 0 && find.get(matched) != Some(&byte) {
        matched = borders[matched - 1];
    }
    matched + usize::from(find.get(matched) == Some(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(find: &str, text: &str) -> Vec<(usize, usize)> {
        of(find, text).into_iter().map(|place| (place.start, place.end)).collect()
    }

    #[test]
    fn places_that_overlap_are_one() {
        let check =
            |find: &str, text: &str, expected: &[(usize, usize)]| assert_eq!(pairs(find, text), expected, "{find}");
        check("aXa", "secret aXaXa end", &[(7, 12)]);
        check("aXa", "aXa aXaaXa", &[(0, 3), (4, 7), (7, 10)]);
        check("aa", "aaa baa a", &[(0, 3), (5, 7)]);
        check("aabaa", "aabaabaa aabaaabaa", &[(0, 8), (9, 18)]);
        check("ab", "abab", &[(0, 2), (2, 4)]);
        check("éé", "ééé", &[(0, 6)]);
        check("", "abc", &[]);
        check("abc", "ab", &[]);
    }

    /// Every text of a few letters, against a search that begins again behind each start.
    #[test]
    fn no_place_is_missed() {
        let texts: Vec<String> = (0..1 << 10).map(|n| format!("{n:010b}")).collect();
        for find in (1..=5).flat_map(|len| (0..1 << len).map(move |n| format!("{n:0len$b}"))) {
            for text in &texts {
                let mut expected = vec![false; text.len()];
                for at in (0..text.len()).filter(|at| text[*at..].starts_with(&find)) {
                    expected[at..at + find.len()].fill(true);
                }
                let mut found = vec![false; text.len()];
                of(&find, text).into_iter().for_each(|place| found[place].fill(true));
                assert_eq!(found, expected, "{find} in {text}");
            }
        }
    }

    /// As a text is that is meant to be slow: beginning again, hundreds of billions of letters would be compared.
    #[test]
    fn a_text_of_one_letter_is_searched_once() {
        let (find, text) = ("a".repeat(500_000), "a".repeat(1_000_000));
        assert_eq!(pairs(&find, &text), [(0, 1_000_000)]);
        assert_eq!(pairs(&format!("{find}ba"), &text), []);
    }
}
