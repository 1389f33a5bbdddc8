//! The room that large events of other gateways' logs have in this one, from their first piece until they have left to who
//! reads them. Who reads slowly holds it for long: so it is shared by tenants, and whoever holds little of it finds some.

use parking_lot::Mutex;
use std::sync::Arc;
use tidegate_fair::{Owner, Places};
use tidegate_types::{Class, TenantId};
use tokio::sync::Notify;

/// The room, in KiB.
pub(super) struct Room {
    places: Mutex<Places>,
    left: Notify,
}

/// Some of it; given back when dropped.
pub(super) struct Held {
    room: Arc<Room>,
    owner: Owner,
    kib: usize,
}

impl Room {
    pub(super) fn new(kib: usize) -> Self {
        Self { places: Mutex::new(Places::new(kib)), left: Notify::new() }
    }

    /// Waits until there is room for so much of a tenant's.
    pub(super) async fn take(self: &Arc<Self>, tenant: &str, kib: usize) -> Held {
        let owner = Owner { tenant: TenantId::new(tenant), class: Class::default(), weight: 1 };
        loop {
            // What is left from here on wakes it, be that before it is waited for.
            let left = self.left.notified();
            if self.try_take(&owner, kib) {
                return Held { room: Arc::clone(self), owner, kib };
            }
            left.await;
        }
    }

    fn try_take(&self, owner: &Owner, kib: usize) -> bool {
        let mut places = self.places.lock();
        let has_room = places.has_room(owner, kib);
        if has_room {
            places.take(owner, kib);
        }
        has_room
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.places.lock().give_back(&self.owner, self.kib);
        self.room.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    fn waits(taking: Pin<&mut impl Future<Output = Held>>) -> bool {
        taking.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn who_reads_slowly_takes_no_room_from_other_tenants_nor_from_who_wants_less() {
        let room = Arc::new(Room::new(64));
        let slow = room.take("a", 40).await;
        let mut more = pin!(room.take("a", 60));
        assert!(waits(more.as_mut()), "its own is full");
        let little = room.take("a", 20).await;
        let other = room.take("b", 30).await;
        drop((slow, other));
        assert!(waits(more.as_mut()));
        drop(little);
        assert!(!waits(more.as_mut()));
    }
}
