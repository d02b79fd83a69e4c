//! Checks of guests' answers that several hooks share.
use camshaft_core::policy::Refusal;

use crate::bindings::host::types;
use crate::text::truncate_chars;

const CODE_CHARS: usize = 64;
const MESSAGE_CHARS: usize = 1024;
const PARAM_CHARS: usize = 256;

/// A guest's refusal, with its texts truncated; `Err` if a refusal may not have its status.
pub(crate) fn refusal(answer: types::Refusal) -> Result<Refusal, String> {
    if !(400..=499).contains(&answer.status) {
        return Err(format!("a refusal with status {}, which is not in 400 to 499", answer.status));
    }
    Ok(Refusal {
        status: answer.status,
        code: truncate_chars(answer.code, CODE_CHARS),
        message: truncate_chars(answer.message, MESSAGE_CHARS),
        param: answer.param.map(|param| truncate_chars(param, PARAM_CHARS)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16) -> types::Refusal {
        types::Refusal { status, code: "é".repeat(65), message: "m".repeat(2000), param: Some("p".repeat(500)) }
    }

    #[test]
    fn takes_only_client_errors_and_cuts_texts() {
        for status in [0, 200, 399, 500, u16::MAX] {
            assert!(refusal(answer(status)).unwrap_err().contains(&status.to_string()));
        }
        for status in [400, 499] {
            let refusal = refusal(answer(status)).unwrap();
            assert_eq!((refusal.status, refusal.message.len()), (status, 1024));
            assert_eq!((refusal.code.chars().count(), refusal.param.map(|p| p.len())), (64, Some(256)));
        }
    }
}
