use crate::numbers::Random;
use crate::rig::{ORDERS, Rig};
use tidegate_device::sampler::philox::philox4x32;
use tidegate_device::{SampleError, SampleRow, Sampler};
use tidegate_kernels::ops::Sample;
use tidegate_kernels::ops::sample::{MAX_TOP, PackedRows, SampleBuffers, outcome};
use tidegate_types::{SampledToken, SamplingParams};

/// What a row needs that `SampleRow` borrows.
#[derive(Clone, Default)]
struct Wish {
    params: SamplingParams,
    position: usize,
    prompt: Vec<u32>,
    output: Vec<u32>,
    mask: Option<Vec<u32>>,
}

impl Wish {
    fn row(&self, segment: usize) -> SampleRow<'_> {
        SampleRow {
            segment,
            params: &self.params,
            position: self.position,
            prompt: &self.prompt,
            output: &self.output,
            mask: self.mask.as_deref(),
        }
    }
}

type Outcomes = Vec<Result<SampledToken, SampleError>>;

/// Who knows the last token of each output.
#[derive(Clone, Copy, Debug)]
enum Last {
    Told,
    /// Only the device: the draw before left it in the row of the same number.
    Fed,
}

/// One row of logits for each wish.
fn on_device(rig: &mut Rig, vocab: usize, logits: &[f32], wishes: &[Wish], last: Last) -> Outcomes {
    let mut rows: Vec<SampleRow<'_>> = wishes.iter().enumerate().map(|(i, wish)| wish.row(i)).collect();
    let mut before = vec![0; wishes.len()];
    for (row, before) in rows.iter_mut().zip(&mut before) {
        if let (Last::Fed, Some((last, output))) = (last, row.output.split_last()) {
            (row.output, *before) = (output, *last as i32);
        }
    }
    let is_fed = |i: usize| matches!(last, Last::Fed) && !wishes[i].output.is_empty();
    let mut packed = PackedRows::default();
    packed.pack(&rows, |segment| (segment, is_fed(segment).then_some(segment)));
    let n = wishes.len();
    let buffers = SampleBuffers {
        logits: rig.upload(logits),
        adjusted: rig.buffer(n * vocab),
        counts: rig.upload(&vec![0u32; n * vocab]),
        rows: rig.upload(&packed.rows),
        bias: rig.upload(&packed.bias),
        history: rig.upload(&packed.history),
        masks: rig.upload(&packed.masks),
        out: rig.buffer(n),
        tops: rig.buffer(n * MAX_TOP),
        drawn: rig.buffer(n),
        before: rig.upload(&before),
    };
    Sample::new(&rig.kernels, vocab).unwrap().launch(&rig.stream, n, &buffers).unwrap();
    let (out, tops) = (rig.download(buffers.out), rig.download(buffers.tops));
    assert!(rig.download(buffers.counts).iter().all(|&c| c == 0), "counts are left behind");
    assert!(rig.download(buffers.logits).iter().zip(logits).all(|(a, b)| a.to_bits() == b.to_bits()), "raw logits");
    let outcomes: Outcomes = out
        .iter()
        .zip(tops.chunks_exact(MAX_TOP))
        .zip(wishes)
        .map(|((sampled, tops), wish)| outcome(sampled, tops, wish.params.logprobs, vocab))
        .collect();
    let drawn = rig.download(buffers.drawn);
    for (id, outcome) in drawn.iter().zip(&outcomes) {
        assert!(outcome.as_ref().is_err() || outcome.as_ref().is_ok_and(|token| token.id == *id as u32));
    }
    outcomes
}

fn on_host(vocab: usize, logits: &[f32], wishes: &[Wish]) -> Outcomes {
    let mut sampler = Sampler::new(vocab);
    let rows = wishes.iter().zip(logits.chunks_exact(vocab)).enumerate();
    rows.map(|(i, (wish, logits))| sampler.draw(logits, &wish.row(i))).collect()
}

/// Score plus noise of a token, as the race adds them, for rows without adjustments.
fn total(logits: &[f32], wish: &Wish, id: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (seed, position) = (wish.params.seed, wish.position as u64);
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let counter = [halves(position)[0], halves(position)[1], id / 4, 0];
    let v = (f64::from(philox4x32(halves(seed), counter)[id as usize % 4]) + 0.5) / 4_294_967_296.0;
    f64::from((logits[id as usize] - max) / wish.params.temperature) - (-(-v).ln_1p()).ln()
}

/// Same tokens and reports; the number of draws that differ by a tie under 1e-5, which alone may differ.
fn compare(vocab: usize, logits: &[f32], wishes: &[Wish], got: &Outcomes) -> usize {
    let mut ties = 0;
    for (i, (got, want)) in got.iter().zip(on_host(vocab, logits, wishes)).enumerate() {
        let (Ok(a), Ok(b)) = (got, &want) else {
            assert_eq!(format!("{got:?}"), format!("{want:?}"), "row {i}");
            continue;
        };
        if a.id != b.id {
            let row = &logits[i * vocab..(i + 1) * vocab];
            let gap = total(row, &wishes[i], a.id) - total(row, &wishes[i], b.id);
            assert!(gap.abs() < 1e-5, "row {i}: {} instead of {}, apart by {gap}", a.id, b.id);
            ties += 1;
            continue;
        }
        assert_eq!(a.top.len(), b.top.len(), "row {i}");
        let pairs = || a.top.iter().chain(&a.logprob.map(|l| (a.id, l))).copied().collect::<Vec<_>>();
        let wanted = b.top.iter().copied().chain(b.logprob.map(|l| (b.id, l)));
        for (x, y) in pairs().into_iter().zip(wanted) {
            assert!(x.0 == y.0 && (x.1 - y.1).abs() < 1e-5, "row {i}: {x:?} instead of {y:?}");
        }
    }
    ties
}

/// Runs the wishes in every order; draws must not depend on it.
fn check(rig: &mut Rig, vocab: usize, logits: &[f32], wishes: &[Wish]) -> usize {
    let mut ties = 0;
    let mut first: Option<String> = None;
    for (order, last) in ORDERS.into_iter().zip([Last::Told, Last::Fed, Last::Told]) {
        rig.order(order);
        let got = on_device(rig, vocab, logits, wishes, last);
        ties = compare(vocab, logits, wishes, &got);
        let shown = format!("{got:?}");
        assert_eq!(*first.get_or_insert_with(|| shown.clone()), shown, "{order:?} {last:?} differs");
    }
    ties
}

/// Logits: spread out, crowded with ties, or almost flat.
fn logits(random: &mut Random, vocab: usize) -> Vec<f32> {
    match random.below(3) {
        0 => random.f32s(vocab, 12.0),
        1 => (0..vocab).map(|_| random.below(9) as f32 - 4.0).collect(),
        _ => random.f32s(vocab, 0.5),
    }
}

fn filters(random: &mut Random, vocab: usize) -> SamplingParams {
    let pick = |random: &mut Random, values: &[f32]| values[random.below(values.len())];
    SamplingParams {
        temperature: pick(random, &[1.0, 0.0, 0.7, 1.9, 0.01]),
        top_k: [0, 1, 5, 40, 1500, vocab as u32 + 3][random.below(6)],
        top_p: pick(random, &[1.0, 0.9, 0.5, 0.999, 1e-6]),
        min_p: pick(random, &[0.0, 0.05, 0.5]),
        seed: u64::from(random.word()) << 20,
        logprobs: [None, Some(0), Some(5), Some(20)][random.below(4)],
        ..SamplingParams::default()
    }
}

#[test]
fn draws_and_reports_are_those_of_the_host() {
    let Some(mut rig) = Rig::new() else { return };
    let mut ties = 0;
    for (vocab, rows) in [(1, 4), (2, 4), (31, 8), (1000, 16), (5003, 12)] {
        let mut random = Random::new(vocab as u64);
        let all: Vec<f32> = (0..rows).flat_map(|_| logits(&mut random, vocab)).collect();
        let wish = |random: &mut Random| Wish {
            params: filters(random, vocab),
            position: random.below(100_000),
            ..Wish::default()
        };
        let wishes: Vec<Wish> = (0..rows).map(|_| wish(&mut random)).collect();
        ties += check(&mut rig, vocab, &all, &wishes);
    }
    println!("{ties} draws differ by a tie under 1e-5");
}

#[test]
fn bias_penalties_and_masks_give_the_hosts_tokens() {
    let Some(mut rig) = Rig::new() else { return };
    let (vocab, rows) = (997, 12);
    let mut random = Random::new(5);
    let all: Vec<f32> = (0..rows).flat_map(|_| random.f32s(vocab, 6.0)).collect();
    let ids = |random: &mut Random, n: usize| -> Vec<u32> { (0..n).map(|_| random.below(vocab) as u32).collect() };
    let wish = |random: &mut Random, i: usize| {
        let mut output = ids(random, 40);
        output.extend_from_within(..20);
        let bias = ids(random, 9).into_iter().cycle().take(12).map(|id| (id, random.unit() * 9.0)).collect();
        let words = (0..vocab.div_ceil(32)).map(|_| random.word()).collect();
        let params = SamplingParams {
            temperature: if i.is_multiple_of(2) { 0.0 } else { 1.0 },
            presence_penalty: if i.is_multiple_of(3) { 0.7 } else { 0.0 },
            frequency_penalty: if i < 6 { 0.31 } else { 0.0 },
            repetition_penalty: if i.is_multiple_of(4) { 1.0 } else { 1.3 },
            logit_bias: if i > 2 { bias } else { Vec::new() },
            logprobs: Some(3),
            ..SamplingParams::default()
        };
        let mask = (i % 3 == 1).then_some(words);
        Wish { params, position: i, prompt: ids(random, 50), output, mask }
    };
    let wishes: Vec<Wish> = (0..rows).map(|i| wish(&mut random, i)).collect();
    check(&mut rig, vocab, &all, &wishes);
}

#[test]
fn a_bad_row_fails_alone_and_as_on_the_host() {
    let Some(mut rig) = Rig::new() else { return };
    let vocab = 70;
    let mut all = Random::new(2).f32s(4 * vocab, 1.0);
    all[vocab + 66] = f32::INFINITY;
    all[vocab + 68] = f32::NAN;
    let overflow = SamplingParams { logit_bias: vec![(3, f32::MAX), (3, f32::MAX)], ..SamplingParams::greedy() };
    let wishes = [
        Wish::default(),
        Wish::default(),
        Wish { mask: Some(vec![0; 3]), ..Wish::default() },
        Wish { params: overflow, ..Wish::default() },
    ];
    check(&mut rig, vocab, &all, &wishes);
}

#[test]
fn a_token_that_only_the_device_knows_counts_in_its_own_rows_history() {
    let Some(mut rig) = Rig::new() else { return };
    let vocab = 40;
    let mut all = vec![0.0; 3 * vocab];
    let wish = |row: usize| {
        (all[row * vocab + 10 + row], all[row * vocab + 20 + row]) = (3.0, 2.0);
        let params = SamplingParams { frequency_penalty: 2.0, ..SamplingParams::greedy() };
        // Drawn already, so that the second best wins.
        Wish { params, output: vec![1, 10 + row as u32], ..Wish::default() }
    };
    let wishes: Vec<Wish> = (0..3).map(wish).collect();
    check(&mut rig, vocab, &all, &wishes);
    let drawn = on_device(&mut rig, vocab, &all, &wishes, Last::Fed);
    assert_eq!(drawn.iter().map(|row| row.as_ref().unwrap().id).collect::<Vec<_>>(), [20, 21, 22]);
}
