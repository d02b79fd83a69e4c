//! What a LoRA adapter's file must be like, so that llama.cpp aborts neither when it loads it nor when it computes with it.
use std::io::{BufReader, Read, Seek, SeekFrom};

use crate::gguf::{AdapterKeys, Header, Refused, TensorEntry, Tensors, block_of};

/// The ends of the names of a pair of matrices.
const A: &str = ".lora_a";
const B: &str = ".lora_b";
/// Vectors of this name are ignored by llama.cpp.
const IGNORED: &str = "_norm.weight";
const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";
const F32: u32 = 0;
const F16: u32 = 1;
const Q8_0: u32 = 8;
const BF16: u32 = 30;

/// Checks that a file is an adapter of the model with this header's architecture and tensors.
///
/// # Errors
/// It is not, or does not fit, with what is wrong.
pub(crate) fn check_adapter(adapter: &Header, base: &AdapterKeys, tensors: &Tensors) -> Result<(), String> {
    let keys = &adapter.adapter;
    let text = |text: &Option<String>| text.as_deref().map_or("nothing".to_owned(), |text| format!("{text:?}"));
    if keys.mistyped {
        return Err("one of general.type, general.architecture, adapter.type and adapter.lora.alpha has another type"
            .to_owned());
    }
    if keys.general_type.as_deref() != Some("adapter") {
        return Err(format!("general.type must be \"adapter\", got {}", text(&keys.general_type)));
    }
    if keys.kind.as_deref() != Some("lora") {
        return Err(format!("adapter.type must be \"lora\", got {}", text(&keys.kind)));
    }
    if keys.architecture.is_none() || keys.architecture != base.architecture {
        let (own, wanted) = (text(&keys.architecture), text(&base.architecture));
        return Err(format!("general.architecture must be the model's, {wanted}, got {own}"));
    }
    if let Some(alpha) = keys.alpha.filter(|alpha| !alpha.is_finite()) {
        return Err(format!("adapter.lora.alpha must be finite, got {alpha}"));
    }
    if adapter.split_count > 1 {
        return Err("an adapter in several files is not supported".to_owned());
    }
    let mut pairs = 0;
    for (name, entry) in adapter.tensors.sorted() {
        if let Some(of) = name.strip_suffix(A) {
            let second = adapter.tensors.get(&format!("{of}{B}"));
            let second = second.ok_or_else(|| format!("tensor {name} has no {of}{B} beside it"))?;
            pair(of, [entry, second], tensors)?;
            pairs += 1;
        } else if let Some(of) = name.strip_suffix(B) {
            if adapter.tensors.get(&format!("{of}{A}")).is_none() {
                return Err(format!("tensor {name} has no {of}{A} beside it"));
            }
        } else if !name.ends_with(IGNORED) {
            return Err(format!("tensor {name} is neither the first nor the second matrix of a pair"));
        }
    }
    if pairs == 0 {
        return Err("it changes no tensor of the model".to_owned());
    }
    Ok(())
}

/// Checks that a product of two matrices fits a tensor of the model.
fn pair(of: &str, [first, second]: [&TensorEntry; 2], base: &Tensors) -> Result<(), String> {
    let Some(TensorEntry { shape: weights, .. }) = base.get(of) else {
        return Err(format!("the model has no tensor {of}"));
    };
    for entry in [first, second] {
        if ![F32, F16, BF16, Q8_0].contains(&entry.kind) {
            return Err(format!("the matrices for {of} have the type {}, not f32, f16, bf16 or q8_0", entry.kind));
        }
    }
    let (a, b) = (first.shape, second.shape);
    let is_embedding = of.ends_with(EMBEDDING);
    if is_embedding && base.get(OUTPUT).is_none() {
        return Err(format!("{of} is also the model's output, where llama.cpp takes no adapter for it"));
    }
    // Of embeddings the first matrix has a row for each token, of others a column for each input.
    let wanted = match is_embedding {
        true => [[b[0], weights[1]], [b[0], weights[0]]],
        false => [[weights[0], b[0]], [b[0], weights[1]]],
    };
    let fits =
        [a[0], a[1]] == wanted[0] && [b[0], b[1]] == wanted[1] && a[2..] == weights[2..] && b[2..] == weights[2..];
    match fits {
        true => Ok(()),
        false => Err(format!("the matrices for {of} have the shapes {a:?} and {b:?}, which do not fit {weights:?}")),
    }
}

/// Checks that all numbers of an adapter's matrices are finite: others would spread to neighbours in a batch.
pub(crate) fn check_numbers(file: &mut (impl Read + Seek), tensors: &Tensors) -> Result<(), Refused> {
    for (name, entry) in tensors.sorted() {
        let elements = entry.shape.iter().product::<u64>();
        let Some((block, bytes)) = block_of(entry.kind) else { continue };
        let at = tensors.data().saturating_add(entry.offset);
        file.seek(SeekFrom::Start(at)).map_err(Refused::Io)?;
        let mut left = BufReader::with_capacity(1 << 16, &mut *file).take(elements / block * bytes);
        let mut unit = [0; 34];
        let unit = &mut unit[..(bytes as usize).min(34)];
        for _ in 0..elements / block {
            left.read_exact(unit).map_err(Refused::Io)?;
            if !is_finite(entry.kind, unit) {
                return Err(Refused::Bad(format!("tensor {name} has a number that is not finite")));
            }
        }
    }
    Ok(())
}

/// Whether a number is finite, or the scale of a block of numbers.
fn is_finite(kind: u32, unit: &[u8]) -> bool {
    let exponent = |mask: u16| unit.first_chunk().is_some_and(|bytes| u16::from_le_bytes(*bytes) & mask != mask);
    match kind {
        F32 => unit.first_chunk().is_some_and(|bytes| f32::from_le_bytes(*bytes).is_finite()),
        F16 | Q8_0 => exponent(0x7c00),
        BF16 => exponent(0x7f80),
        _ => true,
    }
}
