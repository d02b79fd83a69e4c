//! What a monitored sampler would do to a row: it is tried on a copy.
//!
//! Two copies of the row are taken where the sampler stands in its chain. It shapes one of them. Then the same is done to both:
//! the plans of the enforced samplers behind it, and the native chain if none of these settles the row. (Enforced samplers that
//! are called are left out on both sides: each is called once per token, and this would be a second time.) Compared is what
//! both copies would draw, with the same random numbers.
use camshaft_core::ids::Token;
use camshaft_core::sampling::Row;

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Comparison {
    /// Total variation distance of the distributions; `None` where the sampler chose the token itself, or ended the text.
    pub(super) distance: Option<f64>,
    /// Whether another token is drawn.
    pub(super) token: bool,
    /// Whether it ends the generation.
    pub(super) finish: bool,
}

/// `sampler` returns the token that it chose, if it did; `rest` is what comes behind it.
///
/// # Errors
/// The sampler's fault.
pub(super) fn compare<E>(
    row: &Row,
    sampler: impl FnOnce(&mut Row) -> Result<Option<Token>, E>,
    rest: impl Fn(&mut Row),
) -> Result<Comparison, E> {
    let (mut with, mut without) = (row.copy(), row.copy());
    let drawn = sampler(&mut with)?;
    if with.finished().is_some() {
        return Ok(Comparison { distance: None, token: false, finish: true });
    }
    rest(&mut without);
    let chosen = with.take_forced().or(drawn);
    if chosen.is_some() {
        return Ok(Comparison { distance: None, token: chosen != without.draw(), finish: false });
    }
    rest(&mut with);
    let distance = with.distance(&without);
    Ok(Comparison { distance: Some(distance), token: with.draw() != without.draw(), finish: false })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use camshaft_core::sampling::EndReason;

    use super::*;

    fn row() -> Row {
        let mut row = Row::new(&[], 3);
        row.load(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).unwrap();
        row
    }

    fn greedy(row: &mut Row) {
        row.keep_best();
    }

    #[test]
    fn a_sampler_that_does_nothing_differs_in_nothing() {
        let nothing = Comparison { distance: Some(0.0), token: false, finish: false };
        assert_eq!(compare(&row(), |_| Ok::<_, Infallible>(None), |_| {}), Ok(nothing));
        assert_eq!(compare(&row(), |_| Ok::<_, Infallible>(None), greedy), Ok(nothing));
    }

    #[test]
    fn rows_are_compared_after_what_comes_behind_the_sampler() {
        let ban = |tokens: &'static [u32]| {
            move |row: &mut Row| {
                row.ban(tokens).unwrap();
                Ok::<_, Infallible>(None)
            }
        };
        let half = compare(&row(), ban(&[4, 5, 6, 7]), |_| {}).unwrap();
        assert!((half.distance.unwrap() - 0.5).abs() < 1e-6);
        let same = compare(&row(), ban(&[4, 5, 6, 7]), greedy).unwrap();
        assert_eq!(same, Comparison { distance: Some(0.0), token: false, finish: false }, "the best one is not banned");
        let other = compare(&row(), ban(&[0]), greedy).unwrap();
        assert_eq!(other, Comparison { distance: Some(1.0), token: true, finish: false });
    }

    #[test]
    fn a_token_that_it_chooses_or_forces_is_compared_with_the_one_that_is_drawn() {
        let chooses = |token: u32| move |_: &mut Row| Ok::<_, Infallible>(Some(Token(token)));
        let forces = |token: u32| {
            move |row: &mut Row| {
                row.force(&[token, 5]).unwrap();
                Ok::<_, Infallible>(None)
            }
        };
        for (token, differs) in [(0, false), (1, true)] {
            let expected = Comparison { distance: None, token: differs, finish: false };
            assert_eq!(compare(&row(), chooses(token), greedy), Ok(expected));
            assert_eq!(compare(&row(), forces(token), greedy), Ok(expected));
        }
        let ends = |row: &mut Row| {
            row.finish(EndReason::Stop);
            Ok::<_, Infallible>(None)
        };
        assert_eq!(compare(&row(), ends, greedy), Ok(Comparison { distance: None, token: false, finish: true }));
    }

    #[test]
    fn the_row_is_as_it_was() {
        let (mut alone, mut shown) = (row(), row());
        let wild = |row: &mut Row| {
            row.random_bits();
            row.keep_top_k(2);
            row.temperature(0.1).unwrap();
            row.force(&[1]).unwrap();
            Err::<Option<Token>, &str>("trapped")
        };
        for _ in 0..8 {
            assert_eq!(compare(&shown, wild, greedy), Err("trapped"));
            assert_eq!((shown.draw(), shown.is_settled()), (alone.draw(), false));
        }
    }
}
