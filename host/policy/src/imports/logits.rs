//! `camshaft:sampler/logits`: the row of the `sample` call in progress, over core's native operations.
use camshaft_core::ids::Token;
use camshaft_core::sampling::{EndReason, Repeats, Row, RowError};
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::logits::{self, Host, HostRow};
use crate::fault::invalid;
use crate::text::truncate_chars;

/// Maximum number of entries that `top` returns.
const TOP: u32 = 4096;
/// Characters of a wrong argument that its error shows.
const SHOWN_CHARS: usize = 128;

/// The part of a guest's state that the row operations need. It holds the row during a `sample` call.
pub(crate) trait LogitsView: 'static {
    fn row(&mut self) -> CurrentRow<'_>;
}

/// The row of the call in progress.
pub(crate) struct CurrentRow<'a> {
    pub(crate) row: &'a mut Row,
}

struct Logits;

impl HasData for Logits {
    type Data<'a> = CurrentRow<'a>;
}

pub(crate) fn add_to_linker<T: LogitsView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    logits::add_to_linker::<_, Logits>(linker, T::row)
}

type This = Resource<Borrowed>;

fn checked<T>(result: Result<T, RowError>) -> wasmtime::Result<T> {
    result.map_err(|error| invalid(error.to_string()))
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Host for CurrentRow<'_> {}

impl HostRow for CurrentRow<'_> {
    fn size(&mut self, _: This) -> wasmtime::Result<u32> {
        Ok(count(self.row.size()))
    }

    fn candidates(&mut self, _: This) -> wasmtime::Result<u32> {
        Ok(count(self.row.candidates()))
    }

    fn position(&mut self, _: This) -> wasmtime::Result<u32> {
        Ok(count(self.row.position()))
    }

    fn history(&mut self, _: This, max: u32) -> wasmtime::Result<Vec<u32>> {
        Ok(self.row.history(max as usize).iter().map(|token| token.0).collect())
    }

    fn text_tail(&mut self, _: This, max: u32) -> wasmtime::Result<Vec<u8>> {
        Ok(self.row.text_tail(max as usize).to_vec())
    }

    fn bias(&mut self, _: This, ids: Vec<u32>, values: Vec<f32>) -> wasmtime::Result<()> {
        checked(self.row.bias(&ids, &values))
    }

    fn penalize(&mut self, _: This, last_n: u32, repeat: f32, frequency: f32, presence: f32) -> wasmtime::Result<()> {
        checked(self.row.penalize(last_n, repeat, frequency, presence))
    }

    fn temperature(&mut self, _: This, t: f32) -> wasmtime::Result<()> {
        checked(self.row.temperature(t))
    }

    fn keep_best(&mut self, _: This) -> wasmtime::Result<()> {
        self.row.keep_best();
        Ok(())
    }

    fn keep_top_k(&mut self, _: This, k: u32) -> wasmtime::Result<()> {
        self.row.keep_top_k(k);
        Ok(())
    }

    fn keep_top_p(&mut self, _: This, p: f32, min_keep: u32) -> wasmtime::Result<()> {
        checked(self.row.keep_top_p(p, min_keep))
    }

    fn keep_min_p(&mut self, _: This, p: f32, min_keep: u32) -> wasmtime::Result<()> {
        checked(self.row.keep_min_p(p, min_keep))
    }

    fn keep_typical(&mut self, _: This, p: f32, min_keep: u32) -> wasmtime::Result<()> {
        checked(self.row.keep_typical(p, min_keep))
    }

    fn ban(&mut self, _: This, ids: Vec<u32>) -> wasmtime::Result<()> {
        checked(self.row.ban(&ids))
    }

    fn allow_only(&mut self, _: This, ids: Vec<u32>) -> wasmtime::Result<()> {
        checked(self.row.allow_only(&ids))
    }

    fn mask(&mut self, _: This, bits: Vec<u32>) -> wasmtime::Result<()> {
        checked(self.row.mask(&bits))
    }

    fn keep_top_sigma(&mut self, _: This, n: f32) -> wasmtime::Result<()> {
        checked(self.row.keep_top_sigma(n))
    }

    fn exclude_top(&mut self, _: This, threshold: f32, probability: f32) -> wasmtime::Result<()> {
        checked(self.row.exclude_top(threshold, probability))
    }

    fn keep_surprise(&mut self, _: This, target: f32, rate: f32) -> wasmtime::Result<()> {
        checked(self.row.keep_surprise(target, rate))
    }

    fn penalize_repeats(
        &mut self,
        _: This,
        multiplier: f32,
        base: f32,
        allowed: u32,
        last_n: u32,
        breakers: Vec<u32>,
    ) -> wasmtime::Result<()> {
        checked(self.row.penalize_repeats(&Repeats { multiplier, base, allowed, last_n, breakers }))
    }

    fn statistics(&mut self, _: This) -> wasmtime::Result<(f32, f32, f32)> {
        let found = self.row.statistics();
        Ok((found.max, found.log_sum_exp, found.entropy))
    }

    fn force(&mut self, _: This, ids: Vec<u32>) -> wasmtime::Result<()> {
        checked(self.row.force(&ids))
    }

    fn finish(&mut self, _: This, reason: String) -> wasmtime::Result<()> {
        let reason = match reason.as_str() {
            "stop" => EndReason::Stop,
            "length" => EndReason::Length,
            "content-filter" => EndReason::ContentFilter,
            _ => {
                let shown = truncate_chars(reason, SHOWN_CHARS);
                return Err(invalid(format!("finish = {shown:?}, which is not stop, length or content-filter")));
            }
        };
        self.row.finish(reason);
        Ok(())
    }

    fn top(&mut self, _: This, n: u32) -> wasmtime::Result<(Vec<u32>, Vec<f32>)> {
        let best = self.row.top(n.min(TOP) as usize);
        Ok(best.into_iter().map(|(Token(token), logit)| (token, logit)).unzip())
    }

    fn read(&mut self, _: This, start: u32, len: u32) -> wasmtime::Result<Vec<f32>> {
        checked(self.row.read(start, len).map(<[f32]>::to_vec))
    }

    fn write(&mut self, _: This, start: u32, values: Vec<f32>) -> wasmtime::Result<()> {
        checked(self.row.write(start, &values))
    }

    fn draw(&mut self, _: This) -> wasmtime::Result<u32> {
        self.row
            .draw()
            .map(|token| token.0)
            .ok_or_else(|| invalid("no token is left to draw: all of the row is banned"))
    }

    fn drop(&mut self, _: This) -> wasmtime::Result<()> {
        // Guests only borrow rows, and dropping a borrowed handle does nothing.
        Ok(())
    }
}
