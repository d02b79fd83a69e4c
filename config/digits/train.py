#!/usr/bin/env python3
"""Draws digits, trains a small classifier on them, and writes it as ONNX and as weights for the layers of a manifest.

Needs numpy and nothing else, and takes half a minute on one core:

    python3 train.py

Seeds are fixed. Written are digits.onnx, digits.safetensors, seven.json (a request with a digit that training never saw), and, for the
tests, tests/fixtures/digits.json (a hundred such digits).
"""
import base64
import json
import math
import pathlib
import struct

import numpy as np

SIDE = 28
TRAINED, HELD_OUT = 16_000, 4_000
EPOCHS, BATCH, RATE = 8, 64, 2e-3
# What the manifests do with pixels of 0 to 255.
MEAN, DEVIATION = 0.15, 0.32
HERE = pathlib.Path(__file__).resolve().parent


def arc(x, y, wide, high, begin, end, count=12):
    """Points of a part of an ellipse; angles in turns, from the right side downwards."""
    turns = np.linspace(begin, end, count) * 2 * math.pi
    return [(x + wide * math.cos(turn), y + high * math.sin(turn)) for turn in turns]


# Strokes in a square of side 1, from its left upper corner.
STROKES = {
    0: [[arc(0.5, 0.5, 0.27, 0.42, 0, 1, 20)]],
    1: [[[(0.52, 0.08), (0.52, 0.92)]], [[(0.32, 0.28), (0.54, 0.08), (0.54, 0.92)]],
        [[(0.32, 0.28), (0.54, 0.08), (0.54, 0.92)], [(0.32, 0.92), (0.74, 0.92)]]],
    2: [[arc(0.5, 0.32, 0.26, 0.24, -0.5, 0.1) + [(0.22, 0.92), (0.8, 0.92)]]],
    3: [[arc(0.47, 0.29, 0.25, 0.21, -0.45, 0.25), arc(0.47, 0.71, 0.28, 0.21, -0.25, 0.42)],
        [[(0.24, 0.1), (0.74, 0.1), (0.46, 0.44)] + arc(0.46, 0.68, 0.28, 0.24, -0.25, 0.42)]],
    4: [[[(0.58, 0.08), (0.2, 0.64), (0.82, 0.64)], [(0.62, 0.38), (0.62, 0.94)]],
        [[(0.28, 0.1), (0.24, 0.54), (0.76, 0.54)], [(0.7, 0.1), (0.68, 0.94)]]],
    5: [[[(0.74, 0.1), (0.32, 0.1), (0.28, 0.46)] + arc(0.46, 0.66, 0.29, 0.26, -0.35, 0.4)]],
    6: [[[(0.66, 0.08), (0.4, 0.34)] + arc(0.5, 0.68, 0.24, 0.24, -0.45, 0.55, 18)],
        [arc(0.62, 0.6, 0.36, 0.52, -0.25, -0.5) + arc(0.5, 0.68, 0.24, 0.24, 0.5, -0.5, 18)]],
    7: [[[(0.22, 0.1), (0.78, 0.1), (0.42, 0.92)]],
        [[(0.22, 0.1), (0.78, 0.1), (0.42, 0.92)], [(0.36, 0.5), (0.72, 0.5)]]],
    8: [[arc(0.5, 0.29, 0.22, 0.2, 0, 1, 16), arc(0.5, 0.71, 0.27, 0.22, 0, 1, 16)]],
    9: [[arc(0.5, 0.32, 0.24, 0.24, 0, 1, 18) + [(0.72, 0.4), (0.62, 0.92)]],
        [arc(0.5, 0.32, 0.24, 0.24, 0, 1, 18) + [(0.74, 0.36), (0.74, 0.92)]]],
}

CENTRES = np.stack(np.meshgrid(np.arange(SIDE) + 0.5, np.arange(SIDE) + 0.5), -1).reshape(-1, 1, 2)


def draw(digit, rng):
    """One digit of SIDE x SIDE bytes: turned, slanted, stretched, moved, of some thickness, with some noise."""
    variant = STROKES[digit][rng.integers(len(STROKES[digit]))]
    turn, slant = rng.normal(0, 0.1), rng.normal(0, 0.15)
    wide, high = rng.uniform(0.75, 1.1), rng.uniform(0.8, 1.05)
    matrix = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    matrix = matrix @ np.array([[wide, slant], [0, high]])
    shift = np.array([SIDE / 2, SIDE / 2]) + rng.normal(0, 1.0, 2)
    begins, ends = [], []
    for stroke in variant:
        points = np.array(stroke) - 0.5 + rng.normal(0, 0.012, (len(stroke), 2))
        points = points @ matrix.T * 20 + shift
        begins.append(points[:-1])
        ends.append(points[1:])
    begin, end = np.concatenate(begins), np.concatenate(ends)
    along = end - begin
    length = np.maximum((along**2).sum(-1), 1e-9)
    part = (((CENTRES - begin) * along).sum(-1) / length).clip(0, 1)
    distance = np.sqrt(((CENTRES - begin - part[..., None] * along) ** 2).sum(-1)).min(1)
    thickness, edge = rng.uniform(0.7, 1.8), rng.uniform(0.5, 1.0)
    ink = ((thickness - distance) / edge + 0.5).clip(0, 1) * rng.uniform(0.75, 1)
    ink = ink + rng.normal(0, rng.uniform(0, 0.06), ink.shape)
    return (ink.clip(0, 1) * 255).round().astype(np.uint8).reshape(SIDE, SIDE)


def drawn(count, seed):
    """As many of each digit: images and labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    return np.stack([draw(int(label), rng) for label in labels]), labels


def normalised(images):
    return ((images / 255 - MEAN) / DEVIATION).astype(np.float32)[:, None]


def windows(x, kernel, stride):
    """All windows of an image: [rows, height, width, channels * kernel * kernel]."""
    view = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    rows, channels, height, width = view.shape[:4]
    return np.ascontiguousarray(view.transpose(0, 2, 3, 1, 4, 5)).reshape(rows, height, width, channels * kernel * kernel)


class Network:
    """Two convolutions of stride 2 and a linear layer."""

    def __init__(self, rng):
        def weight(*shape):
            return rng.normal(0, math.sqrt(2 / np.prod(shape[1:])), shape).astype(np.float32)

        self.weights = {
            "conv1.weight": weight(8, 1, 5, 5), "conv1.bias": np.zeros(8, np.float32),
            "conv2.weight": weight(16, 8, 3, 3), "conv2.bias": np.zeros(16, np.float32),
            "fc.weight": weight(10, 400), "fc.bias": np.zeros(10, np.float32),
        }

    def forward(self, x):
        w = self.weights
        self.seen1 = windows(x, 5, 2)
        self.given1 = np.maximum(self.seen1 @ w["conv1.weight"].reshape(8, -1).T + w["conv1.bias"], 0)
        self.seen2 = windows(self.given1.transpose(0, 3, 1, 2), 3, 2)
        self.given2 = np.maximum(self.seen2 @ w["conv2.weight"].reshape(16, -1).T + w["conv2.bias"], 0)
        self.flat = self.given2.transpose(0, 3, 1, 2).reshape(len(x), -1)
        return self.flat @ w["fc.weight"].T + w["fc.bias"]

    def gradients(self, x, labels):
        """Of the cross entropy, by the parameters."""
        logits = self.forward(x)
        likely = np.exp(logits - logits.max(1, keepdims=True))
        likely /= likely.sum(1, keepdims=True)
        likely[np.arange(len(x)), labels] -= 1
        of_logits = likely / len(x)
        found = {"fc.weight": of_logits.T @ self.flat, "fc.bias": of_logits.sum(0)}
        of_flat = of_logits @ self.weights["fc.weight"]
        back = of_flat.reshape(len(x), 16, 5, 5).transpose(0, 2, 3, 1) * (self.given2 > 0)
        found["conv2.weight"] = np.tensordot(back, self.seen2, ((0, 1, 2), (0, 1, 2))).reshape(16, 8, 3, 3)
        found["conv2.bias"] = back.sum((0, 1, 2))
        of_windows = (back @ self.weights["conv2.weight"].reshape(16, -1)).reshape(len(x), 5, 5, 8, 3, 3)
        of_given1 = np.zeros(self.given1.shape, np.float32)
        for down in range(3):
            for right in range(3):
                of_given1[:, down : down + 9 : 2, right : right + 9 : 2] += of_windows[..., down, right]
        back = of_given1 * (self.given1 > 0)
        found["conv1.weight"] = np.tensordot(back, self.seen1, ((0, 1, 2), (0, 1, 2))).reshape(8, 1, 5, 5)
        found["conv1.bias"] = back.sum((0, 1, 2))
        return found


def train(images, labels):
    rng = np.random.default_rng(1)
    network = Network(rng)
    first = {name: np.zeros_like(weight) for name, weight in network.weights.items()}
    second = {name: np.zeros_like(weight) for name, weight in network.weights.items()}
    x, step, steps = normalised(images), 0, EPOCHS * (len(images) // BATCH)
    for epoch in range(EPOCHS):
        order = rng.permutation(len(x))
        for begin in range(0, len(x) - BATCH + 1, BATCH):
            batch = order[begin : begin + BATCH]
            step += 1
            rate = RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
            # Adam (Kingma and Ba, 2014).
            for name, gradient in network.gradients(x[batch], labels[batch]).items():
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient**2
                move = first[name] / (1 - 0.9**step) / (np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8)
                network.weights[name] -= (rate * move).astype(np.float32)
        print(f"epoch {epoch + 1}: {accuracy(network, images[:2000], labels[:2000]):.4f} of 2000 digits of the training", flush=True)
    return network


def accuracy(network, images, labels):
    return float((network.forward(normalised(images)).argmax(1) == labels).mean())


def safetensors(weights):
    head, data = {}, b""
    for name, weight in sorted(weights.items()):
        numbers = weight.astype("<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def varint(number):
    given = b""
    while number > 127:
        given += bytes([number & 127 | 128])
        number >>= 7
    return given + bytes([number])


def field(number, value):
    """A field of a protocol buffer: an integer, a text, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def onnx(weights):
    """The same network as an ONNX model (opset 13)."""
    def tensor(name, weight):
        dims = b"".join(field(1, length) for length in weight.shape)
        return field(5, dims + field(2, 1) + field(8, name) + field(9, weight.astype("<f4").tobytes()))

    def node(kind, inputs, output, attributes=b""):
        names = b"".join(field(1, name) for name in inputs)
        return field(1, names + field(2, output) + field(3, output) + field(4, kind) + attributes)

    def value(number, name, lengths):
        axis = lambda length: field(1, field(2, length) if isinstance(length, str) else field(1, length))
        shape = field(2, b"".join(axis(length) for length in lengths))
        return field(number, field(1, name) + field(2, field(1, field(1, 1) + shape)))

    def integers(name, numbers):
        return field(5, field(1, name) + b"".join(field(8, number) for number in numbers) + field(20, 7))

    def integer(name, number):
        return field(5, field(1, name) + field(3, number) + field(20, 2))

    graph = node("Conv", ["image", "conv1.weight", "conv1.bias"], "c1", integers("strides", [2, 2]))
    graph += node("Relu", ["c1"], "r1")
    graph += node("Conv", ["r1", "conv2.weight", "conv2.bias"], "c2", integers("strides", [2, 2]))
    graph += node("Relu", ["c2"], "r2")
    graph += node("Flatten", ["r2"], "flat", integer("axis", 1))
    graph += node("Gemm", ["flat", "fc.weight", "fc.bias"], "logits", integer("transB", 1))
    graph += field(2, "digits")
    graph += b"".join(tensor(name, weight) for name, weight in sorted(weights.items()))
    graph += value(11, "image", ["batch", 1, SIDE, SIDE]) + value(12, "logits", ["batch", 10])
    return field(1, 8) + field(2, "camshaft digits") + field(7, graph) + field(8, field(1, "") + field(2, 13))


def main():
    images, labels = drawn(TRAINED, 1)
    network = train(images, labels)
    unseen, truth = drawn(HELD_OUT, 2)
    print(f"{accuracy(network, unseen, truth):.4f} of {HELD_OUT} digits that it never saw")
    (HERE / "digits.safetensors").write_bytes(safetensors(network.weights))
    (HERE / "digits.onnx").write_bytes(onnx(network.weights))
    rows = ",\n  ".join("[" + ",".join(str(pixel) for pixel in row) + "]" for row in unseen[7].tolist())
    (HERE / "seven.json").write_text(f'{{"model": "digits", "input": [[\n  {rows}\n]]}}\n')
    sample = {"labels": truth[:100].tolist(), "pixels": base64.b64encode(unseen[:100].tobytes()).decode()}
    (HERE.parents[1] / "tests/fixtures/digits.json").write_text(json.dumps(sample) + "\n")


main()
