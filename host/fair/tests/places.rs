//! Who gets in where places are few.

use tidegate_fair::{Owner, Places};
use tidegate_types::{Class, TenantId};

fn owner(tenant: &str, class: Class, weight: u32) -> Owner {
    Owner { tenant: TenantId::new(tenant), class, weight }
}

fn tenant(name: &str) -> Owner {
    owner(name, Class::Standard, 1)
}

/// Takes one after the other until it is refused; says how many it got.
fn fill(places: &mut Places, owner: &Owner) -> usize {
    let mut taken = 0;
    while places.has_room(owner, 1) {
        places.take(owner, 1);
        taken += 1;
    }
    taken
}

#[test]
fn one_tenant_alone_gets_all_places_and_no_more() {
    let mut places = Places::new(8);
    assert_eq!(fill(&mut places, &tenant("a")), 8);
    places.give_back(&tenant("a"), 3);
    assert_eq!((places.held(), fill(&mut places, &tenant("a"))), (5, 3));
}

#[test]
fn who_filled_all_places_shuts_out_nobody_but_itself() {
    let mut places = Places::new(12);
    let [a, b, c] = ["a", "b", "c"].map(tenant);
    assert_eq!(fill(&mut places, &a), 12);
    assert_eq!(fill(&mut places, &b), 6);
    assert_eq!(fill(&mut places, &c), 4);
    places.give_back(&a, 7);
    assert!(!places.has_room(&a, 1), "it still holds more than its share");
    assert!(!places.has_room(&b, 1), "so does this one, among three");
}

#[test]
fn places_that_come_free_are_not_for_who_still_holds_more_than_its_share() {
    let mut places = Places::new(12);
    let [a, b] = ["a", "b"].map(tenant);
    fill(&mut places, &a);
    fill(&mut places, &b);
    for _ in 0..6 {
        assert!(!places.has_room(&a, 1));
        places.give_back(&a, 1);
    }
    assert!(!places.has_room(&a, 1) && !places.has_room(&b, 1), "each has its share: all are held");
    places.give_back(&a, 1);
    assert!(places.has_room(&a, 1) && places.has_room(&b, 1), "below the limit there is room for anybody");
}

#[test]
fn shares_go_by_weight() {
    let mut places = Places::new(12);
    fill(&mut places, &tenant("a"));
    assert_eq!(fill(&mut places, &owner("b", Class::Standard, 3)), 9);
    assert_eq!(fill(&mut places, &owner("c", Class::Standard, 0)), 2, "no weight counts as the least");
}

#[test]
fn a_better_class_does_not_divide_its_share_with_a_worse_one() {
    let mut places = Places::new(12);
    fill(&mut places, &owner("a", Class::Batch, 100));
    assert_eq!(fill(&mut places, &owner("b", Class::Interactive, 1)), 12);
    let mut places = Places::new(12);
    fill(&mut places, &owner("a", Class::Interactive, 1));
    assert_eq!(fill(&mut places, &owner("b", Class::Batch, 1)), 6);
}

#[test]
fn a_tenants_batch_work_does_not_shut_out_its_people() {
    let mut places = Places::new(12);
    fill(&mut places, &owner("a", Class::Batch, 1));
    assert!(places.has_room(&owner("a", Class::Interactive, 1), 1));
}

#[test]
fn however_many_tenants_there_are_there_is_an_end() {
    let mut places = Places::new(10);
    let taken: usize = (0..1000).map(|n| fill(&mut places, &tenant(&n.to_string()))).sum();
    assert_eq!((taken, places.held()), (20, 20));
}

#[test]
fn what_is_larger_than_any_share_is_taken_where_its_owner_holds_nothing() {
    let mut places = Places::new(100);
    assert!(places.has_room(&tenant("a"), 500), "or it would never be");
    places.take(&tenant("a"), 80);
    assert!(!places.has_room(&tenant("a"), 30) && places.has_room(&tenant("a"), 20));
    assert!(places.has_room(&tenant("b"), 90));
    places.take(&tenant("b"), 90);
    assert!(!places.has_room(&tenant("b"), 1));
}

#[test]
fn however_much_is_asked_for_at_once_no_more_than_twice_the_limit_is_held() {
    let mut places = Places::new(100);
    let [a, b, c, large] = ["a", "b", "c", "large"].map(tenant);
    places.take(&a, 100);
    assert!(places.has_room(&large, 500), "no share has room for it, so it comes on top of the limit");
    assert!(places.has_room(&b, 60));
    places.take(&b, 60);
    assert_eq!((places.missing(&c, 60), places.missing(&c, 40), places.missing(&large, 500)), (20, 0, 60));
    places.take(&c, 40);
    assert_eq!(places.held(), 200);
    assert!(!Places::new(0).has_room(&a, 1), "where there is nothing, nobody may have any");
}

#[test]
fn what_will_be_given_back_counts_by_whose_it_is() {
    let mut places = Places::new(100);
    let [a, b, c] = ["a", "b", "c"].map(tenant);
    places.take(&a, 80);
    places.take(&b, 60);
    assert!(!places.will_have_room(&a, 10, 0, 20), "it has more than its share, and the limit is held");
    assert!(places.will_have_room(&a, 10, 0, 50), "that is within the limit");
    assert!(places.will_have_room(&a, 10, 40, 0), "that is within its share");
    assert!(!places.will_have_room(&a, 20, 40, 0) && places.will_have_room(&a, 90, 80, 0));
    places.take(&c, 60);
    assert!(!places.will_have_room(&tenant("d"), 10, 0, 9) && places.will_have_room(&tenant("d"), 10, 0, 10));
}

#[test]
fn what_is_missing_is_what_others_must_give_back_first() {
    let mut places = Places::new(4);
    let [a, b, c] = ["a", "b", "c"].map(tenant);
    fill(&mut places, &a);
    assert_eq!((places.missing(&a, 1), places.missing(&a, 3)), (1, 3));
    assert_eq!((places.missing(&b, 1), fill(&mut places, &b)), (0, 2));
    assert_eq!((places.missing(&a, 1), places.missing(&b, 1)), (3, 3), "each has its share");
    places.take(&c, 2);
    assert_eq!((places.missing(&tenant("d"), 1), places.missing(&a, 1)), (1, 5), "twice the limit is held");
    for (owner, amount) in [(&b, 2), (&c, 2), (&a, 1)] {
        places.give_back(owner, amount);
    }
    assert_eq!(places.missing(&a, 1), 0);
}

#[test]
fn past_the_limit_who_has_more_than_its_share_keeps_nothing() {
    let mut places = Places::new(4);
    let [a, b] = ["a", "b"].map(tenant);
    fill(&mut places, &a);
    assert!(places.may_keep(&a), "nobody else has anything");
    fill(&mut places, &b);
    assert!(!places.may_keep(&a) && places.may_keep(&b));
    places.give_back(&a, 2);
    assert!(places.may_keep(&a) && places.may_keep(&b));
}
