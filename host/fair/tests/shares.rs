//! What the queue promises: weighted shares, no starvation, no credit for idling, order within a tenant.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which clippy does not take for tests.

use proptest::prelude::*;
use tidegate_fair::{FairQueue, Owner};
use tidegate_types::{Class, TenantId};

fn owner(name: &str, weight: u32) -> Owner {
    Owner { tenant: TenantId::new(name), class: Class::Standard, weight }
}

/// Serves `rounds` items of `cost` each among tenants that always have work; returns items served by tenant.
fn serve(owners: &[Owner], costs: &[u64], rounds: usize) -> Vec<u64> {
    let mut queue = FairQueue::new();
    let mut served = vec![0; owners.len()];
    for (index, owner) in owners.iter().enumerate() {
        queue.push(owner, index);
        queue.push(owner, index);
    }
    for _ in 0..rounds {
        let index = queue.pop().unwrap();
        queue.charge(&owners[index], costs[index]);
        served[index] += costs[index];
        queue.push(&owners[index], index);
        queue.release(&owners[index]);
    }
    served
}

#[test]
fn a_better_class_goes_first_whatever_the_counters() {
    let mut queue = FairQueue::new();
    let batch = Owner { class: Class::Batch, ..owner("a", 1) };
    let person = Owner { class: Class::Interactive, ..owner("b", 1) };
    queue.push(&batch, "batch");
    queue.push(&person, "person");
    queue.charge(&person, 1_000_000);
    assert_eq!(queue.peek(), Some(&"person"));
    assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some("person"), Some("batch"), None));
}

#[test]
fn an_item_put_back_goes_before_all_of_its_class_in_order_of_tickets() {
    let mut queue = FairQueue::new();
    let (a, b) = (owner("a", 1), owner("b", 1));
    let first = queue.push(&a, 1);
    let second = queue.push(&a, 2);
    queue.push(&b, 3);
    assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(2), Some(3)));
    queue.charge(&a, 500);
    queue.push(&b, 4);
    queue.put_back(&a, second, 2);
    queue.put_back(&a, first, 1);
    assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(2), Some(4)));
}

#[test]
fn a_removed_item_is_never_served_and_its_tenant_is_forgotten() {
    let mut queue = FairQueue::new();
    let a = owner("a", 1);
    queue.push(&a, 1);
    queue.push(&a, 2);
    assert_eq!(queue.remove(&a, |item| *item == 1), Some(1));
    assert_eq!(queue.remove(&a, |item| *item == 1), None);
    assert_eq!(queue.pop(), Some(2));
    queue.release(&a);
    assert!(queue.is_empty());
    assert_eq!(queue.num_tenants(), 0);
}

#[test]
fn a_removed_item_that_was_put_back_leaves_no_trace() {
    let mut queue = FairQueue::new();
    let a = owner("a", 1);
    let ticket = queue.push(&a, 7);
    assert_eq!(queue.pop(), Some(7));
    queue.put_back(&a, ticket, 7);
    assert_eq!(queue.remove(&a, |item| *item == 7), Some(7));
    assert_eq!((queue.len(), queue.num_tenants()), (0, 0));
}

#[test]
fn an_item_that_may_not_go_holds_up_its_own_tenant_only() {
    let mut queue = FairQueue::new();
    let (a, b) = (owner("a", 1), owner("b", 1));
    let ticket = queue.push(&a, 1);
    queue.push(&a, 2);
    queue.push(&a, 3);
    queue.push(&b, 4);
    assert_eq!(queue.pop(), Some(1));
    queue.put_back(&a, ticket, 1);
    assert_eq!(queue.peek_where(|item| *item > 2), Some(&4));
    assert_eq!(queue.pop_where(|item| *item > 2), Some(4));
    assert_eq!(queue.pop_where(|item| *item > 2), None, "3 stands behind 2");
    assert_eq!((queue.pop(), queue.pop(), queue.pop(), queue.len()), (Some(1), Some(2), Some(3), 0));
}

#[test]
fn an_idle_tenant_gains_no_credit() {
    let (busy, idler) = (owner("busy", 1), owner("idler", 1));
    let mut queue = FairQueue::new();
    for item in 0..100 {
        queue.push(&busy, item);
    }
    for _ in 0..50 {
        queue.pop();
        queue.charge(&busy, 10);
    }
    for item in 100..150 {
        queue.push(&idler, item);
    }
    let mut of_idler = 0;
    for _ in 0..20 {
        let item = queue.pop().unwrap();
        let whose = if item < 100 { &busy } else { &idler };
        of_idler += i32::from(item >= 100);
        queue.charge(whose, 10);
    }
    assert_eq!(of_idler, 10, "the idler gets its half from now on, and nothing for the past");
}

/// As of calls at a database, of which one is held up there: it keeps its turn, and its tenant's counter stays.
#[test]
fn who_asks_all_the_time_is_passed_by_nobody_new_while_something_stays_in_service() {
    for always_waiting in [true, false] {
        let (held, busy, new) = (owner("held", 1), owner("busy", 1), owner("new", 1));
        let mut queue = FairQueue::new();
        queue.push(&held, "held");
        assert_eq!(queue.pop(), Some("held"));
        queue.charge(&held, 1);
        if always_waiting {
            queue.push(&busy, "busy");
        }
        for _ in 0..100 {
            queue.push(&busy, "busy");
            assert_eq!(queue.pop(), Some("busy"));
            queue.charge(&busy, 1);
            queue.release(&busy);
        }
        for _ in 0..50 {
            queue.push(&new, "new");
        }
        queue.push(&busy, "busy");
        let before = std::iter::from_fn(|| queue.pop().inspect(|_| queue.charge(&new, 1)));
        let num_before = before.take_while(|item| *item == "new").count();
        assert!(num_before <= 2, "{num_before} before it, who always waits: {always_waiting}");
    }
}

#[test]
fn a_tenant_that_left_in_debt_comes_back_in_debt() {
    let (greedy, modest) = (owner("greedy", 1), owner("modest", 1));
    let mut queue = FairQueue::new();
    queue.push(&modest, 0);
    queue.push(&greedy, 1);
    while queue.pop().is_some() {}
    queue.charge(&greedy, 100);
    queue.release(&greedy);
    queue.push(&greedy, 2);
    queue.push(&modest, 3);
    assert_eq!(queue.pop(), Some(3));
}

#[test]
fn counters_of_one_class_do_not_lift_another() {
    let starved = Owner { class: Class::Batch, ..owner("starved", 1) };
    let (old, new) = (owner("old", 1), owner("new", 1));
    let mut queue = FairQueue::new();
    queue.push(&starved, 0);
    queue.push(&old, 1);
    queue.charge(&old, 1000);
    queue.push(&new, 2);
    assert_eq!(queue.served(&new), queue.served(&old));
}

proptest! {
    #[test]
    fn shares_converge_to_the_weights(weights in prop::collection::vec(1u32..20, 2..6), cost in 1u64..50) {
        let owners: Vec<_> = weights.iter().enumerate().map(|(i, w)| owner(&format!("t{i}"), *w)).collect();
        let total: u32 = weights.iter().sum();
        let served = serve(&owners, &vec![cost; owners.len()], 40 * total as usize);
        for (index, weight) in weights.iter().enumerate() {
            let expected = 40 * cost * u64::from(*weight);
            // A tenant is at most two items ahead or behind, for each tenant.
            let slack = cost * owners.len() as u64 * 2;
            prop_assert!(served[index].abs_diff(expected) <= slack, "{index}: {} not near {expected}", served[index]);
        }
    }

    #[test]
    fn shares_count_cost_and_not_items(cheap in 1u64..5, dear in 50u64..200) {
        let owners = [owner("cheap", 1), owner("dear", 1)];
        let served = serve(&owners, &[cheap, dear], 1_000);
        prop_assert!(served[0].abs_diff(served[1]) <= dear + cheap);
    }

    #[test]
    fn nobody_starves(costs in prop::collection::vec(1u64..100, 2..8)) {
        let owners: Vec<_> = (0..costs.len()).map(|i| owner(&format!("t{i}"), 1)).collect();
        let rounds = 100 * costs.len() * 2;
        let served = serve(&owners, &costs, rounds);
        prop_assert!(served.iter().all(|served| *served > 0), "{served:?}");
    }

    #[test]
    fn a_tenant_is_served_in_order_and_nothing_is_lost(
        pushes in prop::collection::vec((0usize..4, 0u64..30), 1..80),
    ) {
        let owners: Vec<_> = (0..4).map(|i| owner(&format!("t{i}"), i as u32 + 1)).collect();
        let mut queue = FairQueue::new();
        for (number, (whose, _)) in pushes.iter().enumerate() {
            queue.push(&owners[*whose], (*whose, number));
        }
        let mut last = [None; 4];
        let mut popped = 0;
        while let Some((whose, number)) = queue.pop() {
            prop_assert!(last[whose] < Some(number));
            last[whose] = Some(number);
            queue.charge(&owners[whose], pushes[number].1);
            queue.release(&owners[whose]);
            popped += 1;
        }
        prop_assert_eq!(popped, pushes.len());
        prop_assert!(queue.is_empty());
    }
}
