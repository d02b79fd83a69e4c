use super::*;
use crate::layers;

fn shape(axes: &str) -> Vec<Axis> {
    let axis = |axis: &str| axis.parse().map_or_else(|_| Axis::Any(axis.to_owned()), Axis::Fixed);
    axes.split(' ').map(axis).collect()
}

/// What a layer gives of these inputs, each written as its axes.
fn given(layer: &str, inputs: &[&str]) -> Result<String, String> {
    let entry = layers::read(1, layer.replace("; ", "\n").parse().unwrap()).map_err(|error| error.to_string())?;
    let inputs: Vec<Vec<Axis>> = inputs.iter().map(|axes| shape(axes)).collect();
    output(&entry.layer, &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>()).map(|shape| told(&shape))
}

#[test]
fn each_layer_says_what_shape_it_gives() {
    let check = |layer: &str, inputs: &[&str], expected: &str| {
        assert_eq!(given(layer, inputs).as_deref(), Ok(expected), "{layer}");
    };
    let image = ["n 4 8 6"];
    check("type = \"conv2d\"; out-channels = 2; kernel = 3", &image, "[n, 2, 6, 4]");
    check(
        "type = \"conv2d\"; out-channels = 2; kernel = [3, 1]; stride = 2; padding = [1, 0]; groups = 2",
        &image,
        "[n, 2, 4, 3]",
    );
    check("type = \"conv2d\"; out-channels = 2; kernel = 3; dilation = 2", &image, "[n, 2, 4, 2]");
    check("type = \"conv1d\"; out-channels = 7; kernel = 8", &["n 4 8"], "[n, 7, 1]");
    check("type = \"max-pool2d\"; kernel = 2", &image, "[n, 4, 4, 3]");
    check("type = \"avg-pool1d\"; kernel = 3; stride = 1; padding = 1", &["n 4 8"], "[n, 4, 8]");
    check("type = \"adaptive-avg-pool2d\"; size = [1, 3]", &image, "[n, 4, 1, 3]");
    check("type = \"global-max-pool\"", &image, "[n, 4]");
    check("type = \"batch-norm\"", &image, "[n, 4, 8, 6]");
    check("type = \"linear\"; out-features = 5", &["n t 3"], "[n, t, 5]");
    check("type = \"lstm\"; hidden = 5; bidirectional = true", &["n t 3"], "[n, t, 10]");
    check("type = \"gru\"; hidden = 5; output = \"last\"", &["n t 3"], "[n, 5]");
    check("type = \"attention\"; heads = 3", &["n t 6"], "[n, t, 6]");
    check("type = \"attention\"; heads = 3", &["n t 6", "n s 6", "n s 6"], "[n, t, 6]");
    check("type = \"embedding\"; entries = 9; features = 2", &["n t"], "[n, t, 2]");
    check("type = \"flatten\"", &image, "[n, 192]");
    check("type = \"reshape\"; shape = [2, 96]", &image, "[n, 2, 96]");
    check("type = \"transpose\"; axes = [0, 2, 1]", &["n t 3"], "[n, 3, t]");
    check("type = \"select\"; axis = 1; index = -1", &["n t 3"], "[n, 3]");
    check("type = \"add\"", &["n 3", "n 1"], "[n, 3]");
    check("type = \"concat\"", &["n 3", "n 4"], "[n, 7]");
    check("type = \"softmax\"", &["n 3"], "[n, 3]");
}

#[test]
fn what_does_not_fit_is_refused_with_the_numbers() {
    let check = |layer: &str, inputs: &[&str], words: &str| {
        let error = given(layer, inputs).unwrap_err();
        assert!(error.contains(words), "{layer}: {error}");
    };
    let image = ["n 4 8 6"];
    check("type = \"conv2d\"; out-channels = 2; kernel = 9", &image, "kernel covers 9 of axis 2, which has 8");
    check("type = \"conv2d\"; out-channels = 2; kernel = 7; padding = 0", &image, "axis 3, which has 6");
    check("type = \"conv2d\"; out-channels = 2; kernel = 0", &image, "kernel must be 1 to");
    check("type = \"conv2d\"; out-channels = 2; kernel = 1; stride = 0", &image, "stride must be 1 to");
    check("type = \"conv2d\"; out-channels = 2; kernel = 1; dilation = 0", &image, "dilation must be 1 to");
    check("type = \"conv2d\"; out-channels = 2; kernel = [1, 1, 1]", &image, "a list of 2, got a list of 3");
    check("type = \"conv2d\"; out-channels = 0; kernel = 1", &image, "out-channels must be 1 to");
    check("type = \"conv2d\"; out-channels = 6; kernel = 1; groups = 3", &image, "groups must divide 4 channels");
    check("type = \"conv2d\"; out-channels = 3; kernel = 1; groups = 2", &image, "out-channels 3");
    check(
        "type = \"conv2d\"; out-channels = 2; kernel = 1",
        &["n 4 h 6"],
        "axis 2 of its input must have a fixed length",
    );
    check("type = \"conv2d\"; out-channels = 2; kernel = 1", &["n 4 8"], "4 axes");
    check("type = \"max-pool2d\"; kernel = 2; padding = 2", &image, "at most half of the kernel's 2, got 2");
    check("type = \"linear\"; out-features = 2147483649", &["n 3"], "out-features must be 1 to 2147483648");
    assert!(given("type = \"linear\"; out-features = 2147483648", &["n 3"]).is_ok());
    check("type = \"attention\"; heads = 4", &["n t 6"], "heads must divide the 6 features");
    check("type = \"attention\"; heads = 0", &["n t 6"], "heads must be 1 to");
    check("type = \"attention\"; heads = 2", &["n t 6", "n s 6"], "takes 1 input or 3, got 2");
    check("type = \"attention\"; heads = 2", &["n t 6", "n s 6", "n s 4"], "same shape");
    check("type = \"lstm\"; hidden = 3; layers = 65", &["n t 6"], "layers must be 1 to 64, got 65");
    assert!(given("type = \"lstm\"; hidden = 3; layers = 64", &["n t 6"]).is_ok());
    check("type = \"lstm\"; hidden = 3; reverse = true; bidirectional = true", &["n t 6"], "exclude each other");
    check("type = \"reshape\"; shape = [5]", &image, "192 numbers of each row, got [5]");
    check("type = \"reshape\"; shape = []", &["n 1"], "1 numbers of each row");
    check("type = \"transpose\"; axes = [1, 0]", &["n 3"], "0 first");
    check("type = \"transpose\"; axes = [0, 1, 1]", &["n 3 4"], "each of 3 axes once");
    check("type = \"softmax\"; axis = 0", &["n 3"], "after the first");
    check("type = \"softmax\"; axis = -9", &["n 3"], "after the first");
    check("type = \"select\"; axis = 1; index = 3", &["n 3"], "index 3 is not on axis 1");
    check("type = \"select\"; axis = 1; index = 1", &["n t"], "index 1 is not on axis 1");
    check("type = \"add\"", &["n 3"], "2 inputs or more, got 1");
    check("type = \"add\"", &["n 3", "n 4"], "the same shape, got [n, 3] and [n, 4]");
    check("type = \"concat\"; axis = 0", &["n 3", "n 4"], "after the first");
    check("type = \"concat\"", &["n 2 3", "n 3 3"], "but for axis 2");
    check("type = \"relu\"", &["n 3", "n 3"], "takes 1 input, got 2");
    check("type = \"flatten\"", &["n 2147483648 2147483648 2147483648"], "more numbers than can be counted");
}

#[test]
fn what_is_computed_beside_an_output_is_counted() {
    let conv = Layer::Conv2d(Conv {
        out_channels: 2,
        kernel: Sizes::All(3),
        stride: Sizes::All(1),
        padding: Sizes::All(1),
        dilation: Sizes::All(1),
        groups: 1,
        bias: true,
    });
    let bytes = scratch(&conv, &[&[1, 1, 8, 8]], &[1, 2, 8, 8]).unwrap();
    assert!(bytes >= 10 * 10 + 2 * 64, "{bytes}");
    assert_eq!(scratch(&conv, &[&[usize::MAX, 1, 8, 8]], &[usize::MAX, 2, 8, 8]), None);
}
