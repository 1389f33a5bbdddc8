//! Who computes what, told as text: one line of events, then what each step computed.
//!
//! A script adds jobs (`name tenant class prompt+output`) and steps; the transcript shows for each step the jobs in
//! the order of the plan with their numbers of tokens, `!` where a token was drawn.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which clippy does not take for tests.

use std::collections::HashMap;
use std::fmt::Write;
use tidegate_device::Limits;
use tidegate_engine::config::BLOCK_TOKENS;
use tidegate_engine::prefix::PrefixHasher;
use tidegate_engine::scheduler::{Outcome, Rules, Scheduler};
use tidegate_engine::sequence::Work;
use tidegate_engine::toy;
use tidegate_types::{Class, Job, JobId, SampledToken, SamplingParams, TenantId};

struct Script {
    scheduler: Scheduler,
    names: HashMap<JobId, String>,
    transcript: String,
}

fn rules(num_blocks: usize, max_batch_tokens: usize, max_seqs: usize) -> Rules {
    let limits = Limits { num_blocks, block_tokens: BLOCK_TOKENS, max_batch_tokens, max_seqs };
    let context = num_blocks * BLOCK_TOKENS;
    Rules { limits, context, prefix_cache: false, max_preemptions: 1, max_restarts: 2, pooling: None }
}

/// Runs a script: a line `step N` does N steps, `cancel NAME` cancels, `lost` loses the device under the last plan,
/// any other adds a job.
fn run(rules: Rules, script: &str) -> String {
    let scheduler = Scheduler::new(rules, PrefixHasher::new([1; 32], &toy::facts(10, 4096)));
    let mut all = Script { scheduler, names: HashMap::new(), transcript: String::new() };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["step", times] => (0..times.parse().unwrap()).for_each(|_| all.step()),
            ["cancel", name] => all.cancel(name),
            ["lost"] => all.lose(),
            [name, tenant, class, sizes] => all.add(name, tenant, class, sizes),
            _ => panic!("not a line of a script: {line}"),
        }
    }
    all.transcript
}

impl Script {
    fn add(&mut self, name: &str, tenant: &str, class: &str, sizes: &str) {
        let (prompt, output) = sizes.split_once('+').unwrap();
        let class = match class {
            "person" => Class::Interactive,
            "usual" => Class::Standard,
            "batch" => Class::Batch,
            other => panic!("{other}"),
        };
        let (tenant, weight) = tenant.split_once('*').unwrap_or((tenant, "1"));
        let id = JobId(self.names.len() as u64);
        self.names.insert(id, name.to_owned());
        self.scheduler.submit(Work::new(Job {
            id,
            prompt: vec![1; prompt.parse().unwrap()],
            sampling: SamplingParams::greedy(),
            max_tokens: output.parse().unwrap(),
            stop_token_ids: vec![],
            grammar: None,
            tenant: TenantId::new(tenant),
            class,
            weight: weight.parse().unwrap(),
        }));
    }

    fn step(&mut self) {
        let plan = self.scheduler.plan();
        let mut line = Vec::new();
        for item in &plan.items {
            line.push(format!("{}:{}{}", self.names[&item.id], item.num_tokens, if item.samples { "!" } else { "" }));
        }
        writeln!(self.transcript, "{}", line.join(" ")).unwrap();
        let token = |samples: bool| samples.then(|| SampledToken { id: 2, logprob: None, top: vec![] });
        let outcomes = plan.items.iter().map(|item| Outcome::Computed(token(item.samples))).collect();
        self.scheduler.apply(&plan, outcomes);
        self.scheduler.check().unwrap();
    }

    fn cancel(&mut self, name: &str) {
        let id = self.names.iter().find(|(_, known)| *known == name).map(|(id, _)| *id).unwrap();
        assert!(self.scheduler.cancel(id));
    }

    fn lose(&mut self) {
        let blamed: Vec<_> = self.scheduler.plan().items.iter().map(|item| item.id).collect();
        for (id, _) in self.scheduler.recover(&blamed) {
            writeln!(self.transcript, "{} fails", self.names[&id]).unwrap();
        }
    }
}

fn check(rules: Rules, script: &str, expected: &[&str]) {
    assert_eq!(run(rules, script).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn decodes_come_first_and_a_prompt_fills_the_rest() {
    check(
        rules(100, 32, 8),
        "a t usual 10+3
         step 1
         b t usual 50+2
         step 4",
        &["a:10!", "a:1! b:31", "a:1! b:19!", "b:1!", ""],
    );
}

#[test]
fn a_long_prompt_takes_half_of_the_budget_while_others_wait_and_what_they_leave() {
    check(
        rules(100, 64, 8),
        "long t usual 200+1
         short t usual 5+1
         other t usual 70+1
         step 3",
        // 64: half is 32 for `long`; 5 for `short`; the last waiter takes the 27 that are left.
        &["long:32 short:5! other:27", "long:32 other:32", "long:53 other:11!"],
    );
}

#[test]
fn what_short_prompts_leave_goes_to_the_long_one() {
    check(
        rules(100, 64, 8),
        "long t usual 200+1
         short t usual 5+1
         step 1",
        &["long:59 short:5!"],
    );
}

#[test]
fn a_better_class_is_admitted_first_and_within_one_the_least_served_tenant() {
    check(
        rules(100, 40, 1),
        "a1 a usual 30+1
         a2 a usual 20+1
         b1 b usual 20+1
         c1 c batch 20+1
         d1 d person 20+1
         step 5",
        &["d1:20!", "a1:30!", "b1:20!", "a2:20!", "c1:20!"],
    );
}

#[test]
fn a_tenant_of_double_weight_gets_two_turns_for_one() {
    check(
        rules(100, 40, 1),
        "a1 a*2 usual 20+1
         b1 b usual 20+1
         a2 a*2 usual 20+1
         b2 b usual 20+1
         a3 a*2 usual 20+1
         a4 a*2 usual 20+1
         step 6",
        // At 22 each, the earlier arrival goes first.
        &["a1:20!", "b1:20!", "a2:20!", "b2:20!", "a3:20!", "a4:20!"],
    );
}

#[test]
fn answers_to_one_prompt_compute_it_once_and_let_others_pass() {
    check(
        Rules { prefix_cache: true, ..rules(100, 64, 8) },
        "n1 t usual 100+3
         n2 t usual 100+2
         n3 t usual 100+2
         own u usual 10+1
         step 4",
        &["n1:54 own:10!", "n1:46!", "n1:1! n2:4! n3:4!", "n1:1! n2:1! n3:1!"],
    );
}

#[test]
fn nobody_overtakes_a_prompt_that_waits_for_blocks() {
    check(
        rules(10, 160, 8),
        "a t usual 100+3
         big t usual 80+1
         tiny t usual 5+1
         step 5",
        &["a:100!", "a:1!", "a:1!", "big:80! tiny:5!", ""],
    );
}

#[test]
fn the_latest_of_the_most_served_tenant_is_preempted_and_comes_back_first() {
    check(
        rules(4, 64, 8),
        "a a usual 14+20
         b b usual 14+20
         step 5",
        &["a:14! b:14!", "a:1! b:1!", "a:1! b:1!", "a:1! b:1!", "a:1! b:1!"],
    );
    // With a block less, the 17th token has room for one of them only.
    let transcript = run(
        rules(3, 64, 8),
        "a a usual 14+20
         b b usual 14+20
         step 4
         late b usual 5+1
         step 21",
    );
    let lines: Vec<_> = transcript.lines().collect();
    assert_eq!(lines[..5], ["a:14! b:14!", "a:1! b:1!", "a:1! b:1!", "a:1!", "a:1!"]);
    assert_eq!(lines[20..22], ["b:17!", "b:1!"]);
}

#[test]
fn batch_work_yields_its_slot_to_a_person_but_only_so_often() {
    check(
        rules(100, 64, 1),
        "bulk t batch 10+5
         step 2
         p1 t person 8+2
         step 3
         p2 t person 8+1
         step 5",
        // `max_preemptions` is 1: the second person waits until bulk is done.
        &["bulk:10!", "bulk:1!", "p1:8!", "p1:1!", "bulk:12!", "bulk:1!", "bulk:1!", "p2:8!", "", ""],
    );
}

#[test]
fn batch_work_keeps_its_blocks_where_a_person_would_need_those_of_others_too() {
    check(
        rules(20, 256, 8),
        // 13 of 20 blocks, and 3: with the 4 that are free these are not the 10 that the person needs.
        "big t usual 200+4
         bulk t batch 33+6
         step 1
         person t person 150+1
         step 5",
        &["big:200! bulk:33!", "big:1! bulk:1!", "big:1! bulk:1!", "big:1! bulk:1!", "bulk:1! person:150!", "bulk:1!"],
    );
}

#[test]
fn batch_work_goes_on_while_a_person_waits_for_a_prompt_like_its_own() {
    check(
        Rules { prefix_cache: true, ..rules(100, 32, 2) },
        "bulk u batch 10+20
         step 1
         p1 t person 80+2
         p2 t person 80+2
         step 5",
        // The slots are full; of the second answer only what it cannot find in the cache is computed.
        &["bulk:10!", "bulk:1! p1:31", "bulk:1! p1:31", "bulk:1! p1:18!", "p1:1! p2:16!", "p2:1! bulk:14!"],
    );
}

#[test]
fn usual_work_does_not_yield_to_a_person() {
    check(
        rules(100, 64, 1),
        "usual t usual 10+3
         step 1
         person t person 8+1
         step 3",
        &["usual:10!", "usual:1!", "usual:1!", "person:8!"],
    );
}

#[test]
fn after_a_loss_the_suspects_are_tried_one_by_one() {
    check(
        rules(100, 64, 8),
        "a t usual 10+9
         b t usual 10+9
         step 2
         lost
         new t usual 5+3
         step 4",
        &["a:10! b:10!", "a:1! b:1!", "a:12!", "b:12!", "a:1! b:1! new:5!", "a:1! b:1! new:1!"],
    );
}

#[test]
fn a_job_that_is_lost_each_time_fails_and_the_others_go_on() {
    check(
        rules(100, 64, 8),
        "sick t usual 10+9
         well t usual 10+9
         step 1
         lost
         lost
         lost
         step 2",
        // First both are blamed, then `sick` alone, twice.
        &["sick:10! well:10!", "sick fails", "well:11!", "well:1!"],
    );
}

/// The device is lost over the second piece of `sick`, which shares its steps with `well`.
#[test]
fn a_suspect_is_tried_alone_to_its_last_piece() {
    check(
        rules(100, 64, 8),
        "well t usual 150+2
         sick t usual 100+2
         step 1
         lost
         step 4
         lost
         step 2
         lost
         step 3",
        // `well` has drawn a token when it shares a step again, and is not blamed a second time.
        &[
            "well:32 sick:32",
            "well:64",
            "well:64",
            "well:22!",
            "sick:64",
            "well:64",
            "sick:64",
            "sick fails",
            "well:64",
            "well:64",
            "well:23!",
        ],
    );
}

#[test]
fn a_cancelled_job_is_gone_from_the_next_step() {
    check(
        rules(100, 64, 8),
        "a t usual 10+9
         b t usual 10+9
         step 1
         cancel a
         step 1",
        &["a:10! b:10!", "b:1!"],
    );
}
