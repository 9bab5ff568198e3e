//! Spans against one state per batch.

use proptest::prelude::*;

use super::super::pass_state::{Counts, Tally};
use super::super::spans::{Spans, VisitState};
use super::super::{Mark, Reason, Span, StreamId};

#[derive(Debug, Clone)]
enum Op {
    Cover(u32, u32, u64),
    Send(u32, u32, u64),
    Acknowledge(u32, u32),
    Lose(u64),
}

const SIZE: u32 = 24;

/// What docs/scale.md promises for open windows rests on it.
#[test]
fn a_span_takes_32_bytes() {
    assert_eq!(size_of::<Span>(), 32);
    assert_eq!(size_of::<Option<StreamId>>(), 8);
    assert_eq!((StreamId::new(0).get(), StreamId::default().get(), StreamId::new(7).to_string()), (0, 0, "7".to_owned()));
    assert_eq!(serde_json::to_string(&StreamId::new(8)).unwrap(), "8");
    assert_eq!(serde_json::from_str::<StreamId>("8").unwrap(), StreamId::new(8));
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..SIZE, 1..SIZE).prop_map(|(from, len)| (from, (from + len).min(SIZE)));
    prop_oneof![
        (range.clone(), 0..3u64).prop_map(|((a, b), s)| Op::Cover(a, b, s)),
        (range.clone(), 0..3u64).prop_map(|((a, b), s)| Op::Send(a, b, s)),
        range.prop_map(|(a, b)| Op::Acknowledge(a, b)),
        (0..3u64).prop_map(Op::Lose),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn spans_say_what_single_batches_would(ops in prop::collection::vec(op(), 1..40)) {
        let mut spans = Spans::default();
        let mut model: Vec<Option<(VisitState, u64)>> = vec![None; SIZE as usize];
        let mut counts = Counts::default();
        for op in ops {
            let mut tally = Tally::start(counts, 0, false);
            match op {
                Op::Cover(from, to, s) => {
                    let span = Span { from, to, state: VisitState::Granted, stream: Some(StreamId::new(s)), at_ms: 0, reason: None, mark: Mark::Open };
                    let free = model[from as usize..to as usize].iter().filter(|m| m.is_none()).count();
                    prop_assert_eq!(spans.cover(span, &mut tally), free as u64);
                    for slot in &mut model[from as usize..to as usize] {
                        slot.get_or_insert((VisitState::Granted, s));
                    }
                }
                Op::Send(from, to, s) => {
                    spans.change(from, to, 0, &mut tally, |x| {
                        (x.state == VisitState::Granted && x.stream == Some(StreamId::new(s))).then_some((VisitState::Sent, None))
                    });
                    for slot in &mut model[from as usize..to as usize] {
                        if *slot == Some((VisitState::Granted, s)) {
                            *slot = Some((VisitState::Sent, s));
                        }
                    }
                }
                Op::Acknowledge(from, to) => {
                    spans.change(from, to, 0, &mut tally, |_| Some((VisitState::Acknowledged, None)));
                    for slot in model[from as usize..to as usize].iter_mut().flatten() {
                        slot.0 = VisitState::Acknowledged;
                    }
                }
                Op::Lose(s) => {
                    spans.change(0, SIZE, 0, &mut tally, |x| {
                        (!x.state.is_final() && x.stream == Some(StreamId::new(s))).then_some((VisitState::Lost, Some(Reason::WorkerDied)))
                    });
                    for slot in model.iter_mut().flatten().filter(|m| !m.0.is_final() && m.1 == s) {
                        slot.0 = VisitState::Lost;
                    }
                }
            }
            counts = tally.counts();
            let told: Vec<_> = (0..SIZE).map(|at| spans.get(at).map(|s| (s.state, s.stream.unwrap().get()))).collect();
            prop_assert_eq!(&told, &model);
            prop_assert_eq!(counts.total(), spans.covered());
            prop_assert_eq!(counts.open(), model.iter().flatten().filter(|m| !m.0.is_final()).count() as u64);
            let gap = model.iter().position(Option::is_none).map(|at| u32::try_from(at).unwrap());
            prop_assert_eq!(spans.first_gap(SIZE, 3).map(|g| g.0), gap);
            let list: Vec<_> = spans.iter().collect();
            let joined = list.windows(2).all(|w| w[0].to < w[1].from || (w[0].state, w[0].stream, w[0].reason) != (w[1].state, w[1].stream, w[1].reason));
            prop_assert!(joined, "equal neighbours stay apart: {:?}", list);
        }
    }
}
