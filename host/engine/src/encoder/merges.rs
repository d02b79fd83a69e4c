//! Byte-pair encoding, merge by merge as llama.cpp does it: the pair of the lowest rank first, of equal ones the leftmost.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use camshaft_core::ids::Token;

use super::output::{Full, Output};

/// A text that a vocabulary or a merge names.
type Symbol = u32;
/// A character that neither names.
const UNNAMED: Symbol = Symbol::MAX;
/// Of a part that was merged with the one before it.
const GONE: Symbol = Symbol::MAX - 1;
const NONE: u32 = u32::MAX;

/// The tokens of a vocabulary, and how they grow from characters.
#[derive(Debug)]
pub(super) struct Merges {
    byte_level: bool,
    /// By text: bytes as they are in texts, not as GPT-2 spells them.
    symbols: HashMap<Box<[u8]>, Symbol>,
    /// By symbol.
    tokens: Vec<Option<Token>>,
    /// Rank and result of merging two neighbours.
    pairs: HashMap<(Symbol, Symbol), (u32, Symbol)>,
    /// Bytes of the longest token, if whatever is none itself becomes at least one for each of its bytes.
    longest: Option<usize>,
}

/// A part of a word, up to where the next one starts. A text may be one word of megabytes, so a part is small.
#[derive(Debug, Clone, Copy)]
struct Part {
    symbol: Symbol,
    start: u32,
    previous: u32,
    next: u32,
}

/// A merge of a part with the next one that may be due: its rank and the left part, in the order in which merges are made.
type Due = Reverse<(u32, u32)>;

/// Memory that is used again from word to word.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    parts: Vec<Part>,
    due: BinaryHeap<Due>,
}

impl Merges {
    /// `tokens` are the vocabulary's texts in the order of their ids, `merges` the file's, best first. `byte_level` says
    /// whether both spell bytes as GPT-2 does.
    pub(super) fn new<'a>(
        byte_level: bool,
        tokens: impl Iterator<Item = Vec<u8>>,
        merges: impl Iterator<Item = &'a [u8]>,
    ) -> Self {
        let mut this =
            Self { byte_level, symbols: HashMap::new(), tokens: Vec::new(), pairs: HashMap::new(), longest: None };
        for (id, text) in (0u32..).zip(tokens) {
            if let Some(text) = this.text(&text) {
                let symbol = this.symbol(text);
                this.tokens[symbol as usize] = Some(Token(id));
            }
        }
        for (rank, merge) in (0u32..).zip(merges) {
            // A space at the start belongs to the first part.
            let Some(space) = merge.iter().skip(1).position(|&byte| byte == b' ') else { continue };
            let (left, right) = (&merge[..=space], &merge[space + 2..]);
            let (Some(left), Some(right)) = (this.text(left), this.text(right)) else { continue };
            let both = [left.as_slice(), &right].concat();
            let (left, right, both) = (this.symbol(left), this.symbol(right), this.symbol(both));
            this.pairs.entry((left, right)).or_insert((rank, both));
        }
        this.longest = this.find_longest();
        this
    }

    /// SentencePiece's vocabularies list no merges: any two neighbours merge that are a token together, and the higher its
    /// score, the earlier. `tokens` are texts and scores in the order of the ids.
    pub(super) fn by_score(tokens: impl Iterator<Item = (Vec<u8>, f32)>) -> Self {
        let mut this = Self {
            byte_level: false,
            symbols: HashMap::new(),
            tokens: Vec::new(),
            pairs: HashMap::new(),
            longest: None,
        };
        let mut scores = Vec::new();
        for (id, (text, score)) in (0u32..).zip(tokens) {
            let symbol = this.symbol(text) as usize;
            this.tokens[symbol] = Some(Token(id));
            scores.resize(this.tokens.len(), score);
            scores[symbol] = score;
        }
        // Its sign aside, a score of zero is one score.
        let mut ranks: Vec<f32> = scores.iter().map(|score| score + 0.0).collect();
        ranks.sort_unstable_by(|a, b| b.total_cmp(a));
        ranks.dedup();
        let texts: Vec<(Vec<u8>, Symbol)> = this.symbols.iter().map(|(text, &both)| (text.to_vec(), both)).collect();
        for (text, both) in texts {
            let score = scores[both as usize] + 0.0;
            let rank = ranks.partition_point(|other| other.total_cmp(&score).is_gt()) as u32;
            let Ok(text) = std::str::from_utf8(&text) else { continue };
            for (at, _) in text.char_indices().skip(1) {
                let halves = text.split_at(at);
                if let (Some(left), Some(right)) = (this.half(halves.0), this.half(halves.1)) {
                    this.pairs.insert((left, right), (rank, both));
                }
            }
        }
        this.longest = this.find_longest();
        this
    }

    fn find_longest(&self) -> Option<usize> {
        let spells = match self.byte_level {
            // There is nothing but tokens.
            true => self.tokens.iter().all(Option::is_some) && (0..=255).all(|byte| self.token(&[byte]).is_some()),
            false => (0..=255).all(|byte| self.byte(byte).is_some()),
        };
        spells.then(|| self.symbols.keys().map(|text| text.len()).max()).flatten()
    }

    /// Bytes of the longest token; `None` if parts of a text may have no token.
    pub(super) fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// See [`enough`].
    pub(super) fn enough<'a>(&self, text: &'a str, room: usize) -> &'a str {
        enough(text, self.longest, room)
    }

    /// A part of a token that a text may have as one part: a token, or a single character.
    fn half(&mut self, text: &str) -> Option<Symbol> {
        match self.symbols.get(text.as_bytes()) {
            Some(&symbol) => Some(symbol),
            None => (text.chars().nth(1).is_none()).then(|| self.symbol(text.into())),
        }
    }

    /// The token that a whole word is.
    pub(super) fn token(&self, word: &[u8]) -> Option<Token> {
        self.symbols.get(word).and_then(|&symbol| self.tokens[symbol as usize])
    }

    /// Appends the tokens of a word; of one that has more than anybody wants, so many that they are too many.
    pub(super) fn encode(&self, word: &str, scratch: &mut Scratch, output: &mut Output) -> Result<(), Full> {
        let whole = word.len();
        let word = self.enough(word, output.room());
        self.split(word, &mut scratch.parts);
        let Scratch { parts, due } = scratch;
        let mut first = std::mem::take(due).into_vec();
        first.clear();
        first.reserve(parts.len());
        first.extend((0..parts.len() as u32).filter_map(|left| self.due(parts, left)));
        *due = BinaryHeap::from(first);
        while let Some(Reverse((rank, left))) = due.pop() {
            let l = parts[left as usize];
            // Either part may have been merged with another one since, and a merge of another rank comes in its own turn.
            let Some((_, both)) = self.merge(parts, left).filter(|&(now, _)| now == rank) else { continue };
            let r = &mut parts[l.next as usize];
            r.symbol = GONE;
            let next = r.next;
            parts[left as usize] = Part { symbol: both, next, ..l };
            if next != NONE {
                parts[next as usize].previous = left;
            }
            due.extend([l.previous, left].into_iter().filter_map(|left| self.due(parts, left)));
        }
        let mut at = if parts.is_empty() { NONE } else { 0 };
        while let Some(part) = parts.get(at as usize) {
            let end = parts.get(part.next as usize).map_or(word.len(), |next| next.start as usize);
            match self.tokens.get(part.symbol as usize).copied().flatten() {
                Some(token) => output.tokens.push(token),
                None => {
                    let text = &word.as_bytes()[part.start as usize..end];
                    output.tokens.extend(text.iter().filter_map(|&byte| self.byte(byte)));
                }
            }
            at = part.next;
        }
        if word.len() < whole { Err(Full) } else { Ok(()) }
    }

    /// The characters of a word: bytes, if the vocabulary is one of bytes.
    fn split(&self, word: &str, parts: &mut Vec<Part>) {
        parts.clear();
        // Growing would take as much again, and keep up to twice of it.
        parts.reserve_exact(if self.byte_level { word.len() } else { word.chars().count() });
        let mut push = |start: usize, text: &[u8]| {
            let symbol = self.symbols.get(text).copied().unwrap_or(UNNAMED);
            let at = parts.len() as u32;
            let start = start as u32;
            parts.push(Part { symbol, start, previous: at.checked_sub(1).unwrap_or(NONE), next: at + 1 });
        };
        match self.byte_level {
            true => word.as_bytes().chunks(1).enumerate().for_each(|(at, byte)| push(at, byte)),
            false => word.char_indices().for_each(|(at, c)| push(at, &word.as_bytes()[at..at + c.len_utf8()])),
        }
        if let Some(last) = parts.last_mut() {
            last.next = NONE;
        }
    }

    /// Rank and result of merging a part with the next one.
    fn merge(&self, parts: &[Part], left: u32) -> Option<(u32, Symbol)> {
        let l = parts.get(left as usize)?;
        let r = parts.get(l.next as usize)?;
        self.pairs.get(&(l.symbol, r.symbol)).copied()
    }

    fn due(&self, parts: &[Part], left: u32) -> Option<Due> {
        self.merge(parts, left).map(|(rank, _)| Reverse((rank, left)))
    }

    /// The token of a byte in a text that is none as a whole. As in llama.cpp, bytes that GPT-2 spells with two bytes have
    /// none here.
    fn byte(&self, byte: u8) -> Option<Token> {
        match self.byte_level {
            true if byte.is_ascii_graphic() => self.token(&[byte]),
            true => None,
            false => self.token(format!("<0x{byte:02X}>").as_bytes()),
        }
    }

    fn symbol(&mut self, text: Vec<u8>) -> Symbol {
        *self.symbols.entry(text.into()).or_insert_with(|| {
            self.tokens.push(None);
            (self.tokens.len() - 1) as Symbol
        })
    }

    /// The bytes that a text of the vocabulary stands for; `None` if no text has them.
    fn text(&self, spelled: &[u8]) -> Option<Vec<u8>> {
        match self.byte_level {
            true => std::str::from_utf8(spelled).ok()?.chars().map(byte_of).collect(),
            false => Some(spelled.to_vec()),
        }
    }
}

/// As much of a text as becomes more than `room` tokens for certain, or all of it. `longest`: bytes that a token has at most, if
/// no part of a text is without tokens.
pub(super) fn enough(text: &str, longest: Option<usize>, room: usize) -> &str {
    let bytes = longest.map_or(usize::MAX, |longest| longest.saturating_mul(room.saturating_add(1)));
    &text[..text.ceil_char_boundary(bytes)]
}

/// The byte that GPT-2 spells as `c`: printable bytes of Latin-1 as themselves, the others in their order from U+0100 on.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use camshaft_core::engine::Encode;
    use proptest::prelude::*;

    use super::*;

    /// The parts of a text, by what llama.cpp does: always the best pair of neighbours, and of equal ones the leftmost.
    fn parts(tokens: &[(String, f32)], text: &str) -> Vec<String> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        let score =
            |pair: &[String]| tokens.iter().rev().find(|(text, _)| *text == pair.concat()).map(|&(_, score)| score);
        loop {
            let mut best: Option<(f32, usize)> = None;
            for (at, pair) in parts.windows(2).enumerate() {
                best = score(pair).filter(|&score| best.is_none_or(|(most, _)| score > most)).map(|s| (s, at)).or(best);
            }
            let Some((_, at)) = best else { return parts };
            let right = parts.remove(at + 1);
            parts[at].push_str(&right);
        }
    }

    fn score() -> impl Strategy<Value = f32> {
        prop::sample::select(&[-3.5, -1.0, -0.0, 0.0, 2.0][..])
    }

    proptest! {
        #[test]
        fn merges_by_score_as_one_pass_for_each_merge_would(
            tokens in prop::collection::vec(("[abé]{1,4}", score()), 0..12),
            text in "[abéx]{0,24}",
        ) {
            let bytes = "x".bytes().chain("é".bytes()).map(|byte| (format!("<0x{byte:02X}>"), 0.0));
            let tokens: Vec<(String, f32)> = tokens.into_iter().chain(bytes).collect();
            let merges = Merges::by_score(tokens.iter().map(|(text, score)| (text.clone().into_bytes(), *score)));
            let id = |text: &str| tokens.iter().rposition(|(other, _)| other == text).map(|id| Token(id as u32));
            let mut expected = Vec::new();
            for part in parts(&tokens, &text) {
                match id(&part) {
                    Some(token) => expected.push(token),
                    None => expected.extend(part.bytes().filter_map(|byte| id(&format!("<0x{byte:02X}>")))),
                }
            }
            let mut found = Output::new(&Encode::of(""));
            prop_assert_eq!(merges.encode(&text, &mut Scratch::default(), &mut found), Ok(()));
            prop_assert_eq!(found.tokens, expected);
        }

        #[test]
        fn a_word_has_more_tokens_than_are_wanted_also_where_its_end_is_not_read(
            tokens in prop::collection::vec(("[abé]{1,4}", score()), 0..12),
            text in "[abéx]{0,60}",
            most in 0usize..30,
        ) {
            let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 0.0));
            let merges = Merges::by_score(tokens.into_iter().chain(bytes).map(|(text, score)| (text.into_bytes(), score)));
            prop_assert!(merges.longest.is_some());
            let (mut whole, mut part) = (Output::new(&Encode::of("")), Output::new(&Encode { most, ..Encode::of("") }));
            merges.encode(&text, &mut Scratch::default(), &mut whole).unwrap();
            let read = merges.encode(&text, &mut Scratch::default(), &mut part);
            if whole.tokens.len() <= most {
                prop_assert_eq!((read, part.tokens), (Ok(()), whole.tokens));
            } else {
                prop_assert!(part.tokens.len() > most && matches!(read, Ok(()) | Err(Full)));
            }
        }
    }

    #[test]
    fn regression_a_word_of_megabytes_takes_no_memory_for_tokens_that_nobody_wants() {
        let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 0.0));
        let tokens = bytes.chain([("aa".to_owned(), 1.0), ("aaaa".to_owned(), 2.0)]);
        let merges = Merges::by_score(tokens.map(|(text, score)| (text.into_bytes(), score)));
        let mut scratch = Scratch::default();
        let mut output = Output::new(&Encode { most: 100, ..Encode::of("") });
        assert_eq!(merges.encode(&"a".repeat(2 << 20), &mut scratch, &mut output), Err(Full));
        let longest = "<0x00>".len();
        assert!(output.tokens.len() > 100 && scratch.parts.capacity() <= 101 * longest);
        // Where a byte is no token, nothing is known of how many there will be.
        let merges =
            Merges::by_score([("aa".to_owned(), 1.0)].map(|(text, score)| (text.into_bytes(), score)).into_iter());
        assert_eq!(merges.longest, None);
        // Nor where a merge makes what is no token.
        let (tokens, merge) = (|| (0..=255u8).map(|byte| vec![byte]), b"a a".as_slice());
        let spelled = |byte: Vec<u8>| (0..512).filter_map(char::from_u32).find(|&c| byte_of(c) == Some(byte[0]));
        let spelled = || tokens().map(|byte| spelled(byte).unwrap().to_string().into_bytes());
        assert_eq!(Merges::new(true, spelled(), [merge].into_iter()).longest, None);
        let whole = spelled().chain([b"aa".to_vec()]);
        assert_eq!(Merges::new(true, whole.clone(), [merge].into_iter()).longest, Some(2));
        assert_eq!(Merges::new(true, whole.skip(1), [merge].into_iter()).longest, None, "a byte has no token");
    }
}
