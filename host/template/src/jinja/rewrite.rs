//! Rewrites what minijinja has no hook for, when a template is loaded: `%` between texts, and the tags around what a model generates.
use std::ops::Range;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

use super::python::MODULO;

type Spanned<'a> = (Token<'a>, Range<usize>);

/// Bound of the `%` between values: each of a chain (`a % b % c`) takes a pass over the template. Published ones have four at most.
const MODULOS: usize = 256;

/// `{% generation %}` only marks its text for training. `a % b` calls [`MODULO`], which formats texts.
///
/// # Errors
/// It is not Jinja, or has over [`MODULOS`].
pub(super) fn rewrite(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let mut source = source.to_owned();
    loop {
        let tokens = tokenize(&source, false, syntax.clone());
        let tokens: Vec<Spanned<'_>> = tokens
            .map(|token| token.map(|(token, span)| (token, span.start_offset as usize..span.end_offset as usize)))
            .collect::<Result<_, _>>()?;
        if tokens.iter().filter(|(token, _)| matches!(token, Token::Mod)).count() > MODULOS {
            return Err(Error::new(ErrorKind::SyntaxError, format!("a template has over {MODULOS} % between values")));
        }
        let (mut rewritten, mut end) = (String::new(), 0);
        for (range, text) in (0..tokens.len()).filter_map(|at| change(&source, &tokens, at)) {
            // What overlaps is changed in the next pass.
            if range.start >= end {
                rewritten += &source[end..range.start];
                rewritten += &text;
                end = range.end;
            }
        }
        if end == 0 {
            return Ok(source);
        }
        source = rewritten + &source[end..];
    }
}

/// What a token and those around it become.
fn change(source: &str, tokens: &[Spanned<'_>], at: usize) -> Option<(Range<usize>, String)> {
    let (token, range) = &tokens[at];
    match token {
        Token::Ident("generation") if is_tag(tokens, at) => Some((range.clone(), "if true".to_owned())),
        Token::Ident("endgeneration") if is_tag(tokens, at) => Some((range.clone(), "endif".to_owned())),
        Token::Mod => {
            let (left, right) = (begin_of_factor(tokens, at)?, end_of_operand(tokens, at)?);
            let (left, right) = (tokens[left].1.start, tokens[right].1.end);
            let (first, second) = (&source[left..range.start], &source[range.end..right]);
            Some((left..right, format!("{MODULO}(({first}), ({second}))")))
        }
        _ => None,
    }
}

fn is_tag(tokens: &[Spanned<'_>], at: usize) -> bool {
    let is = |at: usize, wanted: fn(&Token<'_>) -> bool| tokens.get(at).is_some_and(|(token, _)| wanted(token));
    at > 0
        && is(at - 1, |token| matches!(token, Token::BlockStart))
        && is(at + 1, |token| matches!(token, Token::BlockEnd))
}

fn opens(token: &Token<'_>) -> bool {
    matches!(token, Token::ParenOpen | Token::BracketOpen | Token::BraceOpen)
}

fn closes(token: &Token<'_>) -> bool {
    matches!(token, Token::ParenClose | Token::BracketClose | Token::BraceClose)
}

/// Where the product begins that ends before `at`: behind whatever binds less.
fn begin_of_factor(tokens: &[Spanned<'_>], at: usize) -> Option<usize> {
    let (mut depth, mut begin) = (0_usize, at);
    for (index, (token, _)) in tokens[..at].iter().enumerate().rev() {
        if closes(token) {
            depth += 1;
        } else if opens(token) {
            if depth == 0 {
                break;
            }
            depth -= 1;
        } else if depth == 0 && ends_a_product(token) && !is_sign(tokens, index) {
            break;
        }
        begin = index;
    }
    (begin < at).then_some(begin)
}

/// Whether a plus or minus is a sign, and no operator.
fn is_sign(tokens: &[Spanned<'_>], at: usize) -> bool {
    let operators = |token: &Token<'_>| {
        let product = matches!(token, Token::Mul | Token::Div | Token::FloorDiv | Token::Mod | Token::Pow);
        product || ends_a_product(token) || opens(token)
    };
    let before = at.checked_sub(1).and_then(|at| tokens.get(at)).map(|(token, _)| token);
    matches!(tokens[at].0, Token::Plus | Token::Minus) && before.is_none_or(operators)
}

fn ends_a_product(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(word) => {
            ["and", "or", "not", "in", "is", "if", "elif", "else", "set", "for", "call"].contains(word)
        }
        Token::Plus | Token::Minus | Token::Tilde | Token::Comma | Token::Colon | Token::Assign => true,
        Token::Eq | Token::Ne | Token::Gt | Token::Gte | Token::Lt | Token::Lte => true,
        Token::VariableStart | Token::BlockStart => true,
        _ => false,
    }
}

/// Where the operand ends that begins behind `at`: a value, what is got of it or done to it, and powers.
fn end_of_operand(tokens: &[Spanned<'_>], at: usize) -> Option<usize> {
    let (mut depth, mut end) = (0_usize, None);
    for (index, (token, _)) in tokens.iter().enumerate().skip(at + 1) {
        if opens(token) {
            depth += 1;
        } else if closes(token) {
            if depth == 0 {
                break;
            }
            depth -= 1;
        } else if depth == 0 {
            let ends = ends_a_product(token)
                || matches!(token, Token::Mul | Token::Div | Token::FloorDiv | Token::Mod)
                || matches!(token, Token::VariableEnd | Token::BlockEnd);
            if ends && !is_sign(tokens, index) {
                break;
            }
        }
        end = Some(index);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_the_function_for_what_stands_around_the_sign() {
        let check = |source: &str, expected: &str| {
            let rewritten = rewrite(source, &SyntaxConfig::default()).unwrap();
            let expected = expected.replace("mod(", &format!("{MODULO}("));
            assert_eq!(rewritten.replace(' ', ""), expected.replace(' ', ""), "{source}");
        };
        check("100 % of {{ a }} {# b % c #}", "100 % of {{ a }} {# b % c #}");
        check("{{ a % 2 == 0 }}", "{{ mod((a), (2)) == 0 }}");
        check("{{ x + (a.b[1] % 2) | c }}", "{{ x + (mod((a.b[1]), (2))) | c }}");
        check("{{ 1 + 2 * a % -b.c(1) * 3 }}", "{{ 1 + mod((2 * a), (-b.c(1))) * 3 }}");
        check("{{ -7 % 3 - -a % 2 }}", "{{ mod((-7), (3)) - mod((-a), (2)) }}");
        check("{{ a % b % c }}", "{{ mod((mod((a), (b))), (c)) }}");
        check("{{ '%s-%s' % (a, b % c) ~ d }}", "{{ mod(('%s-%s'), ((a, mod((b), (c))))) ~ d }}");
        check(
            "{% if loop.index0 % 2 %}{% set x = f(a, b % 2) %}",
            "{% if mod((loop.index0), (2)) %}{% set x = f(a, mod((b), (2))) %}",
        );
        check("{%- generation -%}x{% endgeneration %}", "{%- if true -%}x{% endif %}");
        check("{{ generation }}", "{{ generation }}");
        assert!(rewrite("{{ '", &SyntaxConfig::default()).is_err());
        let chain = |count: usize| rewrite(&format!("{{{{ a{} }}}}", " % b".repeat(count)), &SyntaxConfig::default());
        assert!(chain(MODULOS).is_ok() && chain(MODULOS + 1).is_err());
        assert!(rewrite(&"{% generation %}{% endgeneration %}".repeat(4000), &SyntaxConfig::default()).is_ok());
    }
}
