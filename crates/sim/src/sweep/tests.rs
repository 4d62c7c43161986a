use super::*;

#[test]
fn a_fault_at_any_operation_costs_nothing_that_was_promised() {
    let shapes = Shape::every();
    let cases = cases(&shapes).unwrap_or_else(|failure| panic!("{failure}"));
    let mut sum = Counts::default();
    for case in cases.iter().step_by(97) {
        sum = sum.plus(case.run(&shapes).unwrap_or_else(|failure| panic!("{failure}")));
    }
    assert!(sum.struck > 300 && sum.recoveries > 100 && sum.hung > 50 && sum.failed > 5, "{sum}");
    assert!(sum.repaired > 15 && sum.unreadable > 20, "{sum}");
}

#[test]
fn corruption_that_nothing_can_tell_is_found_out() {
    let shapes = Shape::all();
    let mut cases = cases(&shapes).unwrap_or_else(|failure| panic!("{failure}"));
    cases.retain(|case| case.fault == Fault::Short && !case.lasts);
    let corrupting = cases.iter().step_by(31).map(|case| Case { fault: Fault::Lost, ..*case });
    assert!(corrupting.filter(|case| case.run(&shapes).is_err()).count() > 10);
}
