//! What samplers and filters ask of a worker: an end for a reason, and log-probabilities.
use super::*;
use crate::filter::{FilterHook, FilterVerdict, FilteringRequest, Piece, TextFilter, TextWindow};
use crate::sampling::EndReason;

/// Ends every generation after three tokens.
#[derive(Debug)]
struct Ends(EndReason);

impl SamplerHook for Ends {
    fn open(&self, _: PolicyDigest, _: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        Ok(Box::new(Self(self.0)))
    }
}

impl TokenSampler for Ends {
    fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault> {
        if row.position() == 3 {
            row.finish(self.0);
        }
        Ok(None)
    }
}

#[test]
fn a_sampler_ends_a_generation_for_the_reason_that_it_gives() {
    for (given, told) in [
        (EndReason::Stop, FinishReason::Stop),
        (EndReason::Length, FinishReason::Length),
        (EndReason::ContentFilter, FinishReason::Filtered),
    ] {
        let mut bench = Bench::new(LIMITS, Arc::new(Ends(given)));
        bench.begin(Start { ignore_eos: true, ..start(1, "abc") });
        bench.run();
        let (text, end) = bench.results().remove(&1).unwrap();
        let Some(Event::Finished { reason, usage, .. }) = end else { panic!("{end:?}") };
        assert_eq!((reason, usage.generated_tokens, text.len()), (told, 3, 3), "{given:?}");
    }
}

/// Passes everything, and asserts that tokens have log-probabilities if it reads them.
#[derive(Debug)]
struct Looks {
    reads: bool,
}

impl FilterHook for Looks {
    fn open(&self, _: PolicyDigest, _: &FilteringRequest) -> Result<Vec<Box<dyn TextFilter>>, Fault> {
        Ok(vec![Box::new(Self { reads: self.reads })])
    }
}

impl TextFilter for Looks {
    fn check(&mut self, piece: Piece, text: &mut TextWindow) -> Result<FilterVerdict, Fault> {
        let all: Vec<_> = text.tokens(0, usize::MAX).collect();
        // A token of the fake engine is a letter.
        assert_eq!(all.len(), text.end());
        assert!(all.iter().all(|token| token.logprob.is_some_and(|logprob| logprob <= 0.0) == self.reads));
        let own: Vec<_> = text.tokens(piece.start, usize::MAX).collect();
        assert_eq!(own, all[piece.start..]);
        Ok(FilterVerdict::Pass(text.end()))
    }

    fn refused(&mut self, why: String) -> Fault {
        panic!("{why}")
    }

    fn reads_logprobs(&self) -> bool {
        self.reads
    }

    fn denies(&self) -> bool {
        true
    }
}

#[test]
fn log_probabilities_are_computed_for_filters_that_read_them_and_for_no_others() {
    for reads in [false, true] {
        let mut bench = Bench::native();
        bench.worker.intake.filters = Arc::new(Looks { reads });
        let filter_chain = PolicyDigest::new([7; 32]);
        bench.begin(Start { filter_chain, ignore_eos: true, ..start(1, "abc") });
        bench.run();
        let (text, end) = bench.results().remove(&1).unwrap();
        assert!(matches!(end, Some(Event::Finished { .. })), "{end:?}");
        assert_eq!(text.len(), 40);
    }
}
