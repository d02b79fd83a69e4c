//! Whether a device gives what the CPU gives, within what both round.
use camshaft_core::tensor::{Number, Tensor};

/// Bound of the difference of two numbers, as a part of the largest one that a model gives.
const TOLERANCE: f64 = 1e-2;

/// Why a device does not compute a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The device is at fault: it computes no other model, either.
    Device(String),
    /// This model cannot be compared.
    Model(String),
}

/// What a device gave of a run. `failure`: what the device said went wrong.
///
/// # Errors
/// The device failed; or only this model was not computed, which says nothing of others.
pub(crate) fn given<T>(outputs: Result<T, String>, failure: Option<&str>) -> Result<T, Unfit> {
    match failure {
        Some(why) => Err(Unfit::Device(why.to_owned())),
        None => outputs.map_err(|_| Unfit::Model("it does not compute the model".to_owned())),
    }
}

/// Computes the first of these inputs that can be compared on both.
///
/// # Errors
/// The device gives no numbers, or others; or there is nothing to compare: what nobody has seen is not trusted.
pub(crate) fn agree(
    inputs: impl IntoIterator<Item = Vec<Tensor>>,
    on_cpu: impl Fn(&[Tensor]) -> Result<Vec<Tensor>, String>,
    on_device: impl Fn(&[Tensor]) -> Result<Vec<Tensor>, Unfit>,
) -> Result<(), Unfit> {
    for inputs in inputs {
        // Infinities and what is no number say nothing of a device, and zeros leave nothing for rounding.
        let is_comparable = |outputs: &Vec<Tensor>| outputs.iter().all(|output| largest(output) > 0.0);
        let Some(expected) = on_cpu(&inputs).ok().filter(is_comparable) else { continue };
        let given = on_device(&inputs)?;
        let are_alike = given.len() == expected.len()
            && given.iter().zip(&expected).all(|(given, expected)| are_close(given, expected));
        return match are_alike {
            true => Ok(()),
            false => Err(Unfit::Device("it computes other numbers than the CPU".to_owned())),
        };
    }
    Err(Unfit::Model("no request that was tried gives numbers on the CPU to compare with".to_owned()))
}

/// The largest of a tensor's finite numbers, without their signs; 0 if there are none.
fn largest(tensor: &Tensor) -> f64 {
    let finite = tensor.numbers().map(|number| number.to_f64().abs()).filter(|number| number.is_finite());
    finite.fold(0.0, f64::max)
}

fn are_close(given: &Tensor, expected: &Tensor) -> bool {
    let largest = largest(expected);
    let is_close = |(given, expected): (f64, f64)| match expected.is_finite() {
        true => (given - expected).abs() <= TOLERANCE * largest,
        // Infinities and what is no number are left to the CPU's judgement.
        false => !given.is_finite(),
    };
    let numbers = |tensor: &Tensor| tensor.numbers().map(Number::to_f64).collect::<Vec<f64>>();
    given.shape() == expected.shape() && numbers(given).into_iter().zip(numbers(expected)).all(is_close)
}

#[cfg(test)]
mod tests {
    use camshaft_core::tensor::Datatype;

    use super::*;

    fn tensor(numbers: &[f32]) -> Vec<Tensor> {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        vec![Tensor::new(Datatype::Fp32, vec![numbers.len()], bytes).unwrap()]
    }

    /// Inputs are given as they are by the CPU, but those that begin with 9, which it refuses.
    fn of(inputs: &[&[f32]], on_device: impl Fn(&[Tensor]) -> Result<Vec<Tensor>, Unfit>) -> Result<(), Unfit> {
        let on_cpu = |inputs: &[Tensor]| match inputs[0].numbers().next() {
            Some(Number::Single(9.0)) => Err("out of range".to_owned()),
            _ => Ok(inputs.to_vec()),
        };
        agree(inputs.iter().map(|numbers| tensor(numbers)), on_cpu, on_device)
    }

    #[test]
    fn regression_a_device_with_which_nothing_was_compared_computes_nothing() {
        let alike = |inputs: &[Tensor]| Ok(inputs.to_vec());
        let nothing: [&[&[f32]]; 5] = [&[], &[&[9.0]], &[&[9.0], &[9.0, 1.0]], &[&[f32::NAN, f32::INFINITY]], &[&[]]];
        for inputs in nothing {
            let unfit = of(inputs, alike).unwrap_err();
            assert!(matches!(&unfit, Unfit::Model(why) if why.contains("to compare with")), "{inputs:?}: {unfit:?}");
        }
        assert_eq!(of(&[&[9.0], &[f32::NAN], &[1.0]], alike), Ok(()));
    }

    #[test]
    fn a_device_agrees_within_a_hundredth_of_the_largest_number_and_not_beyond() {
        let off = |by: f32| of(&[&[100.0, 1.0, f32::NAN]], move |_| Ok(tensor(&[100.0, 1.0 + by, f32::NAN])));
        assert_eq!(off(0.99), Ok(()));
        let wrong = Err(Unfit::Device("it computes other numbers than the CPU".to_owned()));
        assert_eq!(off(1.01), wrong);
        assert_eq!(off(f32::NAN), wrong);
        assert_eq!(of(&[&[1.0, f32::NAN]], |_| Ok(tensor(&[1.0, 1.0]))), wrong);
        assert_eq!(of(&[&[1.0]], |_| Ok(tensor(&[1.0, 1.0]))), wrong, "of another shape");
        assert_eq!(of(&[&[1.0]], |_| Ok(Vec::new())), wrong, "none at all");
    }

    #[test]
    fn regression_only_what_a_device_says_of_itself_takes_it_from_other_models() {
        let lost = Some("it is lost");
        let of_run = |outputs: fn(&[Tensor]) -> Result<Vec<Tensor>, String>, failure: Option<&'static str>| {
            of(&[&[1.0]], move |inputs| given(outputs(inputs), failure))
        };
        let refuses = |_: &[Tensor]| Err("an index is out of range".to_owned());
        let computes = |inputs: &[Tensor]| Ok(inputs.to_vec());
        assert_eq!(of_run(refuses, None), Err(Unfit::Model("it does not compute the model".to_owned())));
        for outputs in [refuses as fn(&[Tensor]) -> _, computes] {
            assert_eq!(of_run(outputs, lost), Err(Unfit::Device("it is lost".to_owned())));
        }
        assert_eq!(of_run(computes, None), Ok(()));
    }

    #[test]
    fn regression_outputs_of_zeros_alone_are_not_compared() {
        // A device rounds what cancels out on the CPU.
        let nearly = |inputs: &[Tensor]| match inputs[0].numbers().next() {
            Some(Number::Single(0.0)) => Ok(tensor(&[1e-9, 0.0])),
            _ => Ok(inputs.to_vec()),
        };
        let unfit = of(&[&[0.0, 0.0]], nearly).unwrap_err();
        assert!(matches!(&unfit, Unfit::Model(why) if why.contains("to compare with")), "{unfit:?}");
        assert_eq!(of(&[&[0.0, 0.0], &[1.0, 0.0]], nearly), Ok(()));
    }
}
