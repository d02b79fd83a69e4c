//! What is made of an output: the most likely classes of each row, with their labels.
use std::cmp::Ordering;
use std::sync::Arc;

use camshaft_core::tensor::{Axis, Class, Datatype, Number, Tensor, TensorSpec};

use crate::error::shown;
use crate::manifest::PostprocessEntry;

/// Classes that a model tells apart, classes that an answer has of a row, and bytes of a label.
const CLASSES: usize = 65_536;
const TOP: usize = 1000;
const LABEL_BYTES: usize = 256;
/// What a class takes in an answer beside its label, whose bytes may become six each.
const CLASS_BYTES: usize = 128;

/// A checked step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Postprocess {
    output: usize,
    softmax: bool,
    top: usize,
    labels: Vec<Arc<str>>,
}

impl Postprocess {
    /// `file`: the text of the file of labels, if there is one.
    ///
    /// # Errors
    /// Says which key does not fit the outputs.
    pub(crate) fn new(entry: &PostprocessEntry, file: Option<&[u8]>, outputs: &[TensorSpec]) -> Result<Self, String> {
        let output = match &entry.output {
            Some(name) => outputs.iter().position(|output| output.name == *name),
            None if outputs.len() == 1 => Some(0),
            None => return Err("output is required: the model gives several".to_owned()),
        };
        let output = output.ok_or_else(|| {
            format!("output: the model gives no {}", shown(entry.output.as_deref().unwrap_or_default()))
        })?;
        let spec = &outputs[output];
        let is_float = matches!(spec.datatype, Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64);
        let classes = match spec.shape.as_slice() {
            [Axis::Fixed(classes)] | [_, Axis::Fixed(classes)] if is_float => *classes,
            _ => {
                let (shape, datatype) = (spec.dimensions(), spec.datatype);
                return Err(format!(
                    "is of an output with rows of a fixed number of scores, got {datatype} with the shape {shape:?}"
                ));
            }
        };
        if !(1..=CLASSES).contains(&classes) {
            return Err(format!("is of 1 to {CLASSES} classes, got {classes}"));
        }
        let most = TOP.min(classes);
        if !(1..=most).contains(&entry.top_k) {
            return Err(format!("top-k must be 1 to {most}, got {}", entry.top_k));
        }
        let labels: Vec<Arc<str>> = match (&entry.labels, file) {
            (Some(_), Some(_)) => return Err("has labels and labels-file, which exclude each other".to_owned()),
            (Some(labels), None) => labels.iter().map(|label| label.as_str().into()).collect(),
            (None, Some(text)) => {
                let text = std::str::from_utf8(text).map_err(|_| "labels-file is no UTF-8 text".to_owned())?;
                text.lines().map(Into::into).collect()
            }
            (None, None) => (0..classes).map(|class| class.to_string().into()).collect(),
        };
        if labels.len() != classes {
            return Err(format!("must have {classes} labels, got {}", labels.len()));
        }
        if let Some(long) = labels.iter().find(|label| label.len() > LABEL_BYTES) {
            return Err(format!("a label has {} bytes, at most {LABEL_BYTES}: {}", long.len(), shown(long)));
        }
        Ok(Self { output, softmax: entry.softmax, top: entry.top_k, labels })
    }

    /// The best classes of each row, the best one first.
    pub(crate) fn classes(&self, outputs: &[Tensor]) -> Vec<Vec<Class>> {
        let Some(output) = outputs.get(self.output) else { return Vec::new() };
        let scores: Vec<f64> = output.numbers().map(Number::to_f64).collect();
        scores.chunks(self.labels.len()).map(|row| self.row(row)).collect()
    }

    fn row(&self, row: &[f64]) -> Vec<Class> {
        // What is not a number is the least likely.
        let better = |&one: &usize, &other: &usize| match (row[one].is_nan(), row[other].is_nan()) {
            (false, false) => row[other].total_cmp(&row[one]).then(one.cmp(&other)),
            (true, true) => one.cmp(&other),
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
        };
        let mut order: Vec<usize> = (0..row.len()).collect();
        let top = self.top.min(order.len());
        if top < order.len() && top > 0 {
            order.select_nth_unstable_by(top - 1, better);
            order.truncate(top);
        }
        order.sort_unstable_by(better);
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|score| (score - most).exp()).sum();
        let score = |index: usize| if self.softmax { (row[index] - most).exp() / sum } else { row[index] };
        let class =
            |index: usize| Class { label: self.labels[index].clone(), index: index as u32, score: score(index) as f32 };
        order.into_iter().map(class).collect()
    }

    /// Upper bound of what the classes of a row take in an answer, in bytes.
    pub(crate) fn row_bytes(&self) -> usize {
        let longest = self.labels.iter().map(|label| label.len()).max().unwrap_or(0);
        self.top * (CLASS_BYTES + 6 * longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(shape: Vec<Axis>) -> TensorSpec {
        TensorSpec { name: "y".to_owned(), datatype: Datatype::Fp32, shape }
    }

    fn made(text: &str, classes: usize) -> Result<Postprocess, String> {
        let outputs = [spec(vec![Axis::Any("batch".to_owned()), Axis::Fixed(classes)])];
        Postprocess::new(&toml::from_str(text).unwrap(), None, &outputs)
    }

    fn tensor(rows: usize, numbers: &[f32]) -> Tensor {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Tensor::new(Datatype::Fp32, vec![rows, numbers.len() / rows], bytes).unwrap()
    }

    #[test]
    fn the_best_classes_come_first_with_their_labels() {
        let step = made("softmax = true\ntop-k = 2\nlabels = [\"a\", \"b\", \"c\"]", 3).unwrap();
        let third = (3f32).ln();
        let classes = step.classes(&[tensor(2, &[0.0, third, 0.0, f32::NAN, 1.0, 1.0])]);
        let told = |row: &[Class]| row.iter().map(|class| (class.label.to_string(), class.index)).collect::<Vec<_>>();
        assert_eq!(told(&classes[0]), [("b".to_owned(), 1), ("a".to_owned(), 0)]);
        assert!((classes[0][0].score - 0.6).abs() < 1e-6 && (classes[0][1].score - 0.2).abs() < 1e-6, "{classes:?}");
        assert_eq!(told(&classes[1]), [("b".to_owned(), 1), ("c".to_owned(), 2)]);
        let raw = made("", 2).unwrap().classes(&[tensor(1, &[-1.0, 2.5])]);
        assert_eq!(raw, [[Class { label: "1".into(), index: 1, score: 2.5 }]]);
    }

    #[test]
    fn keys_that_do_not_fit_are_refused() {
        let check = |text: &str, classes: usize, words: &str| {
            let error = made(text, classes).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        check("output = \"z\"", 3, "gives no z");
        check("top-k = 0", 3, "top-k must be 1 to 3, got 0");
        check("top-k = 4", 3, "top-k must be 1 to 3, got 4");
        check("labels = [\"a\"]", 3, "must have 3 labels, got 1");
        check("", 65_537, "1 to 65536 classes, got 65537");
        assert!(made("top-k = 1000", 65_536).is_ok());
        check("top-k = 1001", 65_536, "1 to 1000");
        assert!(made(&format!("labels = [\"{}\"]", "a".repeat(LABEL_BYTES)), 1).is_ok());
        check(&format!("labels = [\"{}\"]", "a".repeat(LABEL_BYTES + 1)), 1, "257 bytes, at most 256");
        let entry = toml::from_str("").unwrap();
        let any = || Axis::Any("n".to_owned());
        assert!(Postprocess::new(&entry, None, &[spec(vec![any(), any()])]).unwrap_err().contains("fixed number"));
        assert!(Postprocess::new(&entry, Some(b"a\nb\n"), &[spec(vec![Axis::Fixed(2)])]).is_ok());
        assert!(Postprocess::new(&entry, Some(b"a"), &[spec(vec![Axis::Fixed(2)])]).unwrap_err().contains("got 1"));
    }
}
