//! Components made by hand: names without code.

fn leb(mut number: usize, out: &mut Vec<u8>) {
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        out.push(if number == 0 { low } else { low | 0x80 });
        if number == 0 {
            return;
        }
    }
}

fn section(id: u8, body: &[u8], out: &mut Vec<u8>) {
    out.push(id);
    leb(body.len(), out);
    out.extend_from_slice(body);
}

fn name(text: &str, out: &mut Vec<u8>) {
    out.push(0);
    leb(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// A valid component that imports and exports empty instances under these names (Component Model binary format).
pub(crate) fn forge(imports: &[&str], exports: &[&str]) -> Vec<u8> {
    let mut out = b"\0asm\x0d\0\x01\0".to_vec();
    // Type 0: an instance without members.
    section(7, &[1, 0x42, 0], &mut out);
    let mut body = vec![imports.len() as u8];
    for import in imports {
        name(import, &mut body);
        body.extend([5, 0]);
    }
    section(10, &body, &mut out);
    // The next instance, made of no exports.
    section(5, &[1, 1, 0], &mut out);
    let mut body = vec![exports.len() as u8];
    for export in exports {
        name(export, &mut body);
        body.extend([5, imports.len() as u8, 0]);
    }
    section(11, &body, &mut out);
    out
}

/// A component with every occurrence of a name replaced by another name of the same length.
pub(crate) fn renamed(component: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = component.to_vec();
    let starts = |at: &usize| component[*at..].starts_with(from.as_bytes());
    let found: Vec<usize> = (0..component.len()).filter(starts).collect();
    assert!(!found.is_empty(), "{from} does not occur");
    found.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
    bytes
}
