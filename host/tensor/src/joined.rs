//! Several requests as one: their tensors in one along the first axis, and what comes of them taken apart again.
use camshaft_core::tensor::{Datatype, Tensor};

/// Requests that are computed at once. Their tensors differ in the lengths of their first axes alone.
#[derive(Debug)]
pub(crate) struct Requests<'a> {
    requests: &'a [&'a [Tensor]],
    /// Of each.
    rows: Vec<usize>,
}

impl<'a> Requests<'a> {
    pub(crate) fn of(requests: &'a [&'a [Tensor]]) -> Self {
        let rows = |request: &&[Tensor]| request.first().and_then(|tensor| tensor.shape().first()).copied();
        Self { requests, rows: requests.iter().map(|request| rows(request).unwrap_or(0)).collect() }
    }

    /// For each input of the model, the tensor of each request.
    ///
    /// # Errors
    /// A request has fewer tensors than another one.
    pub(crate) fn inputs(&self) -> Result<Vec<Vec<&'a Tensor>>, String> {
        let parts = |input: usize| {
            let parts: Option<Vec<&Tensor>> = self.requests.iter().map(|request| request.get(input)).collect();
            parts.ok_or_else(|| format!("a request without its input {input}"))
        };
        (0..self.requests.first().map_or(0, |request| request.len())).map(parts).collect()
    }

    /// What each request gets, from the parts of each output.
    ///
    /// # Errors
    /// As the parts.
    pub(crate) fn answers(
        &self,
        outputs: impl Iterator<Item = Result<Vec<Tensor>, String>>,
    ) -> Result<Vec<Vec<Tensor>>, String> {
        let mut answers: Vec<Vec<Tensor>> = self.requests.iter().map(|_| Vec::new()).collect();
        for parts in outputs {
            answers.iter_mut().zip(parts?).for_each(|(answer, tensor)| answer.push(tensor));
        }
        Ok(answers)
    }

    /// Takes an output apart along its first axis.
    ///
    /// # Errors
    /// It does not have the rows of the inputs.
    pub(crate) fn split(&self, datatype: Datatype, shape: &[usize], bytes: &[u8]) -> Result<Vec<Tensor>, String> {
        let Some((&all, others)) = shape.split_first() else { return Err("an output without axes".to_owned()) };
        let rows: usize = self.rows.iter().sum();
        if rows != all {
            return Err(format!("an output of {all} rows for {rows} of the inputs"));
        }
        let row_bytes = bytes.len().checked_div(all).unwrap_or(0);
        let mut rest = bytes;
        let part = |&rows: &usize| {
            let (own, after) = rest.split_at(rows * row_bytes);
            rest = after;
            Tensor::new(datatype, [&[rows], others].concat(), own.to_vec()).map_err(|error| error.to_string())
        };
        self.rows.iter().map(part).collect()
    }
}

/// Type and shape of several tensors one after the other.
///
/// # Errors
/// They differ in more than the lengths of their first axes.
pub(crate) fn stacked(parts: &[&Tensor]) -> Result<(Datatype, Vec<usize>), String> {
    let Some((first, others)) = parts.split_first() else { return Err("a tensor of nothing".to_owned()) };
    let mut shape = first.shape().to_vec();
    for part in others {
        if part.datatype() != first.datatype() || part.shape().get(1..) != first.shape().get(1..) {
            return Err("tensors of several types or shapes".to_owned());
        }
        let (length, added) = (shape.first_mut(), part.shape().first());
        let (Some(length), Some(added)) = (length, added) else { return Err("a tensor without axes".to_owned()) };
        *length = length.checked_add(*added).ok_or_else(|| "more rows than can be counted".to_owned())?;
    }
    Ok((first.datatype(), shape))
}
