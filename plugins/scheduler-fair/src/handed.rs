//! How the counters are written for the next version.
//!
//! | bytes | |
//! |---|---|
//! | 1 | version of the format: 1 |
//! | for each tenant | |
//! | 8 | counter, a little-endian IEEE 754 number |
//! | 4 | bytes of the name, little-endian |
//! | … | the tenant's name |
use std::collections::BTreeMap;

const VERSION: u8 = 1;
/// What the host takes of a checkpoint.
const MAX_BYTES: usize = 1 << 20;

/// Writes as many counters as fit, the highest first: a tenant without one is lifted to the lowest of those that are busy.
pub(crate) fn write<'a>(counters: impl Iterator<Item = (&'a str, f64)>) -> Vec<u8> {
    let mut all: Vec<(&str, f64)> = counters.collect();
    all.sort_unstable_by(|(_, one), (_, other)| other.total_cmp(one));
    let mut bytes = vec![VERSION];
    for (name, counter) in all {
        let Ok(length) = u32::try_from(name.len()) else { continue };
        if bytes.len() + 12 + name.len() > MAX_BYTES {
            break;
        }
        bytes.extend(counter.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(name.as_bytes());
    }
    bytes
}

/// Reads what [`write`] wrote.
///
/// # Errors
/// It is of another format, cut, or holds a counter that is no service.
pub(crate) fn read(bytes: &[u8]) -> Result<BTreeMap<String, f64>, String> {
    let Some((&VERSION, mut rest)) = bytes.split_first() else {
        return Err(format!("counters of format {:?}, not {VERSION}", bytes.first()));
    };
    let mut counters = BTreeMap::new();
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let cut = || format!("the counters are cut at byte {at} of {}", bytes.len());
        let (counter, more) = rest.split_first_chunk().ok_or_else(cut)?;
        let (length, more) = more.split_first_chunk().ok_or_else(cut)?;
        let (name, more) = more.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
        let (name, counter) = (String::from_utf8_lossy(name).into_owned(), f64::from_le_bytes(*counter));
        if !counter.is_finite() || counter.is_sign_negative() {
            return Err(format!("the counter at byte {at} is {counter}"));
        }
        counters.insert(name, counter);
        rest = more;
    }
    Ok(counters)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counters_are_read_as_they_were_written(
            counters in prop::collection::btree_map(".{0,20}", 0f64..1e12, 0..50),
        ) {
            let bytes = write(counters.iter().map(|(name, counter)| (name.as_str(), *counter)));
            prop_assert_eq!(read(&bytes).unwrap(), counters);
            for cut in 1..bytes.len() {
                // Whole entries are whole counters.
                let _ = read(&bytes[..cut]);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn what_is_of_another_format_or_no_counter_is_refused() {
        let of = |counter: f64| write([("a", counter)].into_iter());
        assert!(read(&[]).is_err() && read(&[2]).is_err() && read(&[1]).unwrap().is_empty());
        assert!(read(&of(1.0)[..20.min(of(1.0).len() - 1)]).unwrap_err().contains("cut at byte 1"));
        for bad in [f64::NAN, f64::INFINITY, -1.0, -0.0] {
            assert!(read(&of(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_highest_counters_are_kept_where_not_all_fit() {
        let names: Vec<String> = (0..20_000).map(|n| format!("{n:0100}")).collect();
        let bytes = write(names.iter().enumerate().map(|(n, name)| (name.as_str(), n as f64)));
        let kept = read(&bytes).unwrap();
        assert!(bytes.len() <= MAX_BYTES && bytes.len() + 112 > MAX_BYTES);
        assert!(kept.contains_key(&names[19_999]) && !kept.contains_key(&names[0]));
        assert_eq!(kept.len(), (MAX_BYTES - 1) / 112);
    }
}
