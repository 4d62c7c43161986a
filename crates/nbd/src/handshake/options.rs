//! What the data of options say.

use bytes::Buf as _;

use crate::proto::{ALLOCATION_CONTEXT, info};

/// The items of information asked for, of those that there are.
#[derive(Clone, Copy)]
pub(super) struct Wanted(u16);

impl Wanted {
    pub(super) fn contains(self, kind: u16) -> bool {
        self.0 & (1 << kind) != 0
    }
}

/// Name length 32, name, number of items 16, items 16 each. `None` if that is not exactly what `data` holds.
pub(super) fn parse_info(mut data: &[u8]) -> Option<(&[u8], Wanted)> {
    let name = string(&mut data)?;
    let count = data.try_get_u16().ok()?;
    if data.len() != 2 * usize::from(count) {
        return None;
    }
    let mut wanted = Wanted(0);
    while let Ok(kind) = data.try_get_u16() {
        if kind <= info::BLOCK_SIZE {
            wanted.0 |= 1 << kind;
        }
    }
    Some((name, wanted))
}

/// Name length 32, name, number of queries 32, then length 32 and text of each. Returns the name and whether the
/// queries find the one context: by its name, and, to list, also by its namespace or by no query at all.
pub(super) fn parse_meta_context(mut data: &[u8], set: bool) -> Option<(&[u8], bool)> {
    let name = string(&mut data)?;
    let queries = data.try_get_u32().ok()?;
    let mut selected = queries == 0 && !set;
    for _ in 0..queries {
        let query = string(&mut data)?;
        selected |= query == ALLOCATION_CONTEXT.as_bytes() || (!set && query == b"base:");
    }
    data.is_empty().then_some((name, selected))
}

/// Length 32 and that many bytes.
fn string<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = data.try_get_u32().ok()? as usize;
    let (text, rest) = data.split_at_checked(length)?;
    *data = rest;
    Some(text)
}
