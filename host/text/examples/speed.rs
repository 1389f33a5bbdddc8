//! What the text side costs, printed: `cargo run --release -p tidegate-text --example speed [FOLDER]`.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tidegate_text::{
    AddSpecial, ChatOptions, Detokenizer, OutputEvent, OutputParser, Place, Specials, StopMatcher, TextError, TextModel,
};
use tidegate_types::{Message, Role};

const PARAGRAPH: &str = "Tides are the rise and fall of sea levels caused by the Moon, the Sun and the Earth's \
    rotation; 12 h 25 min lie between two high waters. Die Flut kommt, die Ebbe geht. 潮の満ち引き。 🌊\n";

fn main() -> Result<(), TextError> {
    let starter = concat!(env!("CARGO_MANIFEST_DIR"), "/../gateway/assets/starter");
    let dir = std::env::args().nth(1).unwrap_or_else(|| starter.to_owned());
    let begun = Instant::now();
    let model = Arc::new(TextModel::open(Path::new(&dir))?);
    println!("open                  {:9.1} ms", begun.elapsed().as_secs_f64() * 1e3);

    let text = PARAGRAPH.repeat(200);
    let ids = model.encode(&text, AddSpecial::No)?;
    println!("{} bytes of text are {} tokens", text.len(), ids.len());
    per_item("encode, per token", ids.len(), || model.encode(&text, AddSpecial::No).map(drop))?;
    let chat = [Message::text("m0", Role::User, text.as_str())];
    per_item("encode_chat, per token", ids.len(), || model.encode_chat(&chat, &[], &ChatOptions::default()).map(drop))?;
    let short = [Message::text("m0", Role::User, "Hello!")];
    per_item("encode_chat, short", 1, || model.encode_chat(&short, &[], &ChatOptions::default()).map(drop))?;

    per_item("detokenize, per token", ids.len(), || {
        let mut detokenizer = Detokenizer::new(Arc::clone(&model), Specials::Hide, Place::Start);
        ids.iter().for_each(|id| drop(black_box(detokenizer.push(*id))));
        Ok(())
    })?;
    let stops = ["\n\n\n".to_owned(), "STOP".to_owned()];
    per_item("+ parse + stop", ids.len(), || {
        let mut detokenizer = Detokenizer::new(Arc::clone(&model), Specials::ShowMarkup, Place::Start);
        let mut matcher = StopMatcher::new(&stops)?;
        let mut parser = OutputParser::new(model.dialect(), false);
        for id in &ids {
            for parsed in parser.push(&detokenizer.push(*id)) {
                if let OutputEvent::Text(text) = parsed.event {
                    black_box(matcher.push(&text));
                }
            }
        }
        Ok(())
    })
}

/// The best of several runs, per item.
fn per_item(what: &str, num_items: usize, run: impl Fn() -> Result<(), TextError>) -> Result<(), TextError> {
    let mut best = f64::INFINITY;
    for _ in 0..9 {
        let begun = Instant::now();
        run()?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    println!("{what:<22}{:9.3} us", best * 1e6 / num_items as f64);
    Ok(())
}
