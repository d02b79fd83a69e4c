use crate::made::{self, Graph};

fn error(graph: &Graph, ragged: &str) -> String {
    made::load_with(graph, &format!("[ragged]\n{ragged}")).unwrap_err().to_string()
}

const MASKED: &str = "axis = \"sequence\"\nmask = \"attention_mask\"";

#[test]
fn a_model_that_masks_its_padding_is_padded() {
    for graph in [made::encoder(), made::signals(false)] {
        let model = made::load_with(&graph, &format!("[ragged]\n{MASKED}\n[ragged.fill]\nattention_mask = 0")).unwrap();
        assert_eq!(model.requests(), "in batches, padded along sequence");
        assert!(model.signature.mask.is_some_and(|mask| (mask.input, mask.like) == (1, 0)));
    }
    let model = made::load_with(&made::encoder(), "[ragged]\naxis = \"sequence\"").unwrap();
    assert_eq!((model.signature.mask, model.ragged.is_some()), (None, true), "clients send it");
}

#[test]
fn padding_that_shows_is_refused_with_both_numbers() {
    // Attention without a mask, a mask that has no effect, and one of ones.
    let unmasked = error(&made::attention(), "axis = \"words\"");
    assert!(
        unmasked.contains("m.toml") && unmasked.contains("ragged.axis") && unmasked.contains("output y"),
        "{unmasked}"
    );
    let number = |part: &str| part.split_whitespace().next().unwrap().parse::<f64>().unwrap();
    let (before, after) = unmasked.split_once(" alone and ").unwrap();
    assert_ne!(number(before.rsplit(' ').next().unwrap()), number(after), "{unmasked}");
    let forgets = error(&made::signals(true), MASKED);
    assert!(forgets.contains("padding shows in output states"), "{forgets}");
    let ones = error(&made::encoder(), &format!("{MASKED}\nfill.attention_mask = 1"));
    assert!(ones.contains("padding shows in output states"), "{ones}");
}

#[test]
fn models_without_such_an_axis_or_without_batches_are_refused() {
    assert!(error(&made::linear(), "axis = \"batch\"").contains("batch is the first axis"));
    assert!(error(&made::linear(), "axis = \"sequence\"").contains("there are batch"));
    assert!(error(&made::softmax(0), "axis = \"width\"").contains("one at a time"));
    let failing = error(&made::lookup_of_rows(), "axis = \"n\"");
    assert!(failing.contains("none of the lengths 1 to 16 of n could be tried"), "{failing}");
}
