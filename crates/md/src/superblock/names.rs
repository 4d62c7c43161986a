//! What a level makes of its layout, in words.

use super::content::Level;

/// The layout of an array of this level, in mdadm's words; `None` if the level has no layouts.
#[must_use]
pub fn layout_words(level: Level, layout: u32) -> Option<String> {
    match level {
        Level::Raid0 => match layout {
            1 => Some("original".to_owned()),
            2 => Some("alternate".to_owned()),
            _ => None,
        },
        Level::Raid5 => Some(parity_name(layout).map_or_else(|| format!("unknown ({layout})"), str::to_owned)),
        Level::Raid6 => Some(double_parity_name(layout).unwrap_or_else(|| format!("unknown ({layout})"))),
        Level::Raid10 => Some(copies(layout)),
        Level::Linear | Level::Raid1 | Level::Raid4 | Level::Other(_) => None,
    }
}

fn parity_name(layout: u32) -> Option<&'static str> {
    Some(match layout {
        0 => "left-asymmetric",
        1 => "right-asymmetric",
        2 => "left-symmetric",
        3 => "right-symmetric",
        4 => "parity-first",
        5 => "parity-last",
        _ => return None,
    })
}

fn double_parity_name(layout: u32) -> Option<String> {
    Some(match layout {
        0..=5 => parity_name(layout)?.to_owned(),
        8 => "ddf-zero-restart".to_owned(),
        9 => "ddf-N-restart".to_owned(),
        10 => "ddf-N-continue".to_owned(),
        16..=20 => format!("{}-6", parity_name(layout - 16)?),
        _ => return None,
    })
}

/// Such as `near=2`, `far=2 in sets`, `near=2, offset=2`.
fn copies(layout: u32) -> String {
    let (near, far) = (layout & 0xff, layout >> 8 & 0xff);
    let mut words = Vec::new();
    if near != 1 || far == 1 {
        words.push(format!("near={near}"));
    }
    if far != 1 {
        words.push(format!("{}={far}", if layout & 1 << 16 == 0 { "far" } else { "offset" }));
    }
    let sets = match layout >> 17 {
        0 => "",
        1 => " in sets as of Linux 3.9",
        2 => " in sets",
        _ => return format!("unknown ({layout:#x})"),
    };
    words.join(", ") + sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_mdadms_names() {
        for (level, layout, words) in [
            (Level::Raid5, 2, "left-symmetric"),
            (Level::Raid5, 9, "unknown (9)"),
            (Level::Raid6, 10, "ddf-N-continue"),
            (Level::Raid6, 18, "left-symmetric-6"),
            (Level::Raid10, 0x102, "near=2"),
            (Level::Raid10, 0x201, "far=2"),
            (Level::Raid10, 0x1_0301, "offset=3"),
            (Level::Raid10, 0x202, "near=2, far=2"),
            (Level::Raid10, 0x4_0201, "far=2 in sets"),
            (Level::Raid0, 2, "alternate"),
        ] {
            assert_eq!(layout_words(level, layout).as_deref(), Some(words));
        }
        assert_eq!(layout_words(Level::Raid1, 0), None);
    }
}
