"""Tools that calculate: with one expression, with an operation and its operands, or for one operation alone."""

import corpus
from toolbox import Request, function, typed, wrapped

DIV_FORMS = ("What is {a} divided by {b}?", "What is {a} / {b}?", "{a} / {b}", "{a} divided by {b}", "Divide {a} by {b}.",
             "Calculate {a} / {b}.", "How much is {a} divided by {b}?", "{a}/{b}")
FORMS = {"+": corpus.ADD_FORMS, "-": corpus.SUB_FORMS, "*": corpus.MUL_FORMS, "/": DIV_FORMS}
OPERANDS = (("a", "b"), ("a", "b"), ("x", "y"), ("left", "right"), ("first", "second"), ("num1", "num2"), ("n", "m"),
            ("first_number", "second_number"), ("lhs", "rhs"))
SPELLINGS = (("add", "subtract", "multiply", "divide"), ("add", "subtract", "multiply", "divide"),
             ("plus", "minus", "times", "divided"), ("+", "-", "*", "/"), ("add", "sub", "mul", "div"))
ALONE = {
    "+": (("add_numbers", "add", "sum", "plus", "add_two_numbers", "addition"),
          (None, "Add two numbers.", "Adds two numbers", "Return the sum of two numbers.", "Sum of two numbers.")),
    "-": (("subtract", "minus", "subtract_numbers", "difference", "sub"),
          (None, "Subtract two numbers.", "Subtracts the second number from the first.", "Difference of two numbers.")),
    "*": (("multiply", "times", "product", "multiply_numbers", "mul"),
          (None, "Multiply two numbers.", "Multiplies two numbers", "Return the product of two numbers.")),
    "/": (("divide", "quotient", "divide_numbers", "division", "div"),
          (None, "Divide two numbers.", "Divides the first number by the second.", "Quotient of two numbers.")),
}


def operand(rng):
    roll = rng.random()
    if roll < 0.45:
        return rng.randint(0, 20)
    if roll < 0.92:
        return rng.randint(0, rng.choice((99, 999, 9999)))
    return round(rng.uniform(0, 99), rng.choice((1, 2)))


class Calculator:
    kind, names = "calculator", ("calculator", "calculator", "calculate", "calc", "compute", "math", "arithmetic", "do_math",
                                 "evaluate", "evaluate_expression")
    descriptions = (None, "Calculate something.", "A calculator.", "Evaluate an arithmetic expression.", "Do arithmetic.",
                    "Calculates with two numbers", "Performs basic arithmetic operations.")
    number = ("number", "number", "integer")

    def __init__(self, rng, shape=None, sign=None):
        """shape: expression, operation or alone; sign: of the operation, for the last."""
        self.shape = shape or rng.choice(("expression", "operation", "alone"))
        self.sign, name, about = None, rng.choice(self.names), rng.choice(self.descriptions)
        kind = rng.choice(self.number)
        self.a, self.b = rng.choice(OPERANDS)
        properties = {self.a: {"type": kind}, self.b: {"type": kind}}
        if self.shape == "expression":
            self.a = rng.choice(("expression", "expression", "expr", "input", "formula"))
            properties = {self.a: {"type": "string"}}
        elif self.shape == "operation":
            self.operation, self.spelling = rng.choice(("operation", "operation", "op", "operator")), SPELLINGS[0]
            schema = {"type": "string"}
            if rng.random() < 0.75:
                self.spelling = rng.choice(SPELLINGS)
                schema["enum"] = list(self.spelling)
                if rng.random() < 0.3:
                    rng.shuffle(schema["enum"])
            operation = {self.operation: schema}
            properties = operation | properties if rng.random() < 0.6 else properties | operation
        else:
            self.sign = sign or rng.choice("++++-**/")
            self.kind = "calculator " + self.sign
            name, about = (rng.choice(words) for words in ALONE[self.sign])
        self.order = list(properties)
        self.tool = function(name, about, properties, list(properties))

    def ask(self, rng):
        sign, a, b = self.sign or rng.choice("+++-**/"), operand(rng), operand(rng)
        if self.shape == "expression" and rng.random() < 0.12:
            text = f"{a} {sign} {b} {rng.choice('+-*/')} {operand(rng)}"
            return Request(rng.choice(("{}", "Calculate {}.", "What is {}?", "Compute {}.")).format(text), {self.a: text})
        prompt = typed(rng, rng.choice(FORMS[sign]).format(a=a, b=b))
        if self.shape == "expression":
            return Request(prompt, {self.a: f"{a} {sign} {b}"})
        values = {self.a: a, self.b: b}
        if self.shape == "operation":
            values[self.operation] = self.spelling["+-*/".index(sign)]
        return Request(prompt, {name: values[name] for name in self.order})

    def result(self, rng, arguments):
        """Any number: it is the tool that calculates, and the answer says what it returned."""
        value = rng.randint(-50, rng.choice((99, 999, 99999))) if rng.random() < 0.85 else round(rng.uniform(0, 999), 2)
        return wrapped(rng, ("result", "result", "value", "answer", "output", "sum"), value), f"The result is {value}."
