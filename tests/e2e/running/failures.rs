//! Members that fail while others are being rebuilt.

use uraid_tests::array::Content;
use uraid_tests::image::{assert_same, read_export};
use uraid_tests::shape;

use super::{Load, ask, filled, is_rebuilding, path, refuse, status};

/// The first content that a member ever gets is being made when it fails, and so does another one.
#[test]
fn a_member_fails_while_it_is_being_made() {
    for (shape, other) in
        [(shape::raid1_of_3(), Some(0)), (shape::raid5_of_3(), None), (shape::rm2_of_7_adjacent(), Some(5))]
    {
        let (array, server, events, model) = filled(&shape);
        let load = Load::start(&server, model, 11);
        let _ = ask(&array, &["fail", "1"]).success();
        let _ = ask(&array, &["set", "--rebuild-limit", "64K"]).success();
        let new = array.path("new");
        let new = new.to_str().unwrap();
        let _ = ask(&array, &["add", "--size", "6M", new]).success();
        assert!(is_rebuilding(&array), "{}", shape.name);
        let _ = ask(&array, &["fail", new]).success();
        assert!(!is_rebuilding(&array));
        assert_eq!(status(&array)["health"]["missing"], serde_json::json!([1]), "{}", shape.name);
        if let Some(other) = other {
            let _ = ask(&array, &["fail", &other.to_string()]).success();
        }
        refuse(&array, &["fail", "2"], "the array needs member");
        let _ = ask(&array, &["set", "--rebuild-limit", "none"]).success();
        let _ = ask(&array, &["add", new]).success();
        if let Some(other) = other {
            let _ = ask(&array, &["add", path(&array, other)]).success();
        }
        let _ = events.until("recovered");
        let model = load.finish();
        assert_same(&read_export(server.uri()), &model, shape.name);
        let _ = server.stop();
    }
}

/// RM2 survives one failure more while a member is being rebuilt, and none after that.
#[test]
fn all_that_is_survived_fails_during_a_rebuild() {
    for shape in [shape::rm2_of_7_adjacent(), shape::rm2_of_7_partitioned()] {
        let (array, server, events, model) = filled(&shape);
        let load = Load::start(&server, model, 12);
        let _ = ask(&array, &["fail", "4"]).success();
        let _ = ask(&array, &["set", "--rebuild-limit", "64K"]).success();
        let _ = ask(&array, &["add", path(&array, 4)]).success();
        let _ = ask(&array, &["fail", "1"]).success();
        assert_eq!(status(&array)["health"]["survives"], 0);
        refuse(&array, &["fail", "0"], "the array needs member");
        assert_eq!(status(&array)["members"][4]["state"], "rebuilding", "it goes on");
        let _ = ask(&array, &["add", path(&array, 1)]).success();
        let _ = ask(&array, &["set", "--rebuild-limit", "none"]).success();
        let _ = events.until("recovered");
        let model = load.finish();
        assert_eq!(status(&array)["health"]["survives"], 2);
        assert_same(&read_export(server.uri()), &model, shape.name);
        let _ = server.stop();
        Content::read(&array).assert_holds(&model, shape.name);
    }
}
