//! The codes that are exchanged at once. Each of them has the issuer at work, and anybody may come with one that is made up:
//! so they are bounded, shared by the addresses that they come from (`tidegate-fair`), and who finds no place waits a little.
//! One address alone may take all places; another still finds its share.

use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_fair::{Owner, Places};
use tidegate_types::{Class, TenantId};
use tokio::sync::Notify;

/// The most at once; up to twice as many where they are of many addresses.
const MOST: usize = 16;

/// Places for exchanges.
pub(crate) struct Exchanges {
    places: Mutex<Places>,
    freed: Notify,
}

/// A place, until it is dropped.
pub(crate) struct Place<'a> {
    exchanges: &'a Exchanges,
    owner: Owner,
}

impl Exchanges {
    pub(crate) fn new() -> Self {
        Self { places: Mutex::new(Places::new(MOST)), freed: Notify::new() }
    }

    /// A place for `peer`, which waits for one no longer than `wait`; `None` where there is none then.
    pub(crate) async fn enter(&self, peer: IpAddr, wait: Duration) -> Option<Place<'_>> {
        tokio::time::timeout(wait, self.place(owner(peer))).await.ok()
    }

    async fn place(&self, owner: Owner) -> Place<'_> {
        let mut freed = pin!(self.freed.notified());
        loop {
            // Before it looks, or what is freed meanwhile would be missed.
            freed.as_mut().enable();
            if self.take(&owner) {
                return Place { exchanges: self, owner };
            }
            freed.as_mut().await;
            freed.set(self.freed.notified());
        }
    }

    fn take(&self, owner: &Owner) -> bool {
        let mut places = self.lock();
        let room = places.has_room(owner, 1);
        if room {
            places.take(owner, 1);
        }
        room
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.exchanges.lock().give_back(&self.owner, 1);
        self.exchanges.freed.notify_waiters();
    }
}

/// Whose share an address uses. Whoever has one address of version 6 has the 2^64 of its network.
fn owner(peer: IpAddr) -> Owner {
    let share = match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    };
    Owner { tenant: TenantId::new(share.to_string()), class: Class::default(), weight: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn who_takes_all_places_waits_for_one_and_others_do_not() {
        let (exchanges, greedy) = (Exchanges::new(), address("192.0.2.1"));
        let mut held = Vec::new();
        for _ in 0..MOST {
            held.push(exchanges.enter(greedy, Duration::ZERO).await.unwrap());
        }
        for same in ["192.0.2.1", "::ffff:192.0.2.1"] {
            assert!(exchanges.enter(address(same), Duration::ZERO).await.is_none(), "{same}");
        }
        let other = exchanges.enter(address("192.0.2.2"), Duration::ZERO).await;
        assert!(other.is_some());
        drop(other);
        let waits = exchanges.enter(greedy, SOON);
        let frees = async { drop(held.pop()) };
        let (place, ()) = tokio::join!(waits, frees);
        assert!(place.is_some());
        drop((place, held));
        assert_eq!(exchanges.lock().held(), 0);
    }

    #[test]
    fn a_network_of_version_6_has_one_share() {
        let whose = |text: &str| owner(address(text)).tenant;
        assert_eq!(whose("2001:db8::1"), whose("2001:db8::ffff:1"));
        assert_ne!(whose("2001:db8::1"), whose("2001:db8:0:1::1"));
        assert_ne!(whose("192.0.2.1"), whose("192.0.2.2"));
    }
}
