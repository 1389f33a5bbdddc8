//! Which addresses a guarded request may be sent to: those of the public internet, and networks that the operator
//! names. An address that carries another one inside (mapped, translated, tunnelled) is never public: what it leads to
//! is decided elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// `address/bits`, as in `10.0.0.0/8`; without bits, one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no network like 10.0.0.0/8");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| bad())?;
        if bits > most { Err(bad()) } else { Ok(Self { address, bits }) }
    }
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.bits);
                u32::from(net).checked_shr(shift) == u32::from(address).checked_shr(shift)
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.bits);
                u128::from(net).checked_shr(shift) == u128::from(address).checked_shr(shift)
            }
            _ => false,
        }
    }
}

/// Decides about addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    granted: Vec<Network>,
}

impl AddressPolicy {
    /// Public addresses, and those of `granted`.
    pub fn new(granted: Vec<Network>) -> Self {
        Self { granted }
    }

    /// Whether a connection to `address` may be made.
    pub fn allows(&self, address: IpAddr) -> bool {
        self.granted.iter().any(|network| network.contains(address)) || is_public(address)
    }
}

/// Addresses that lead to machines of the public internet and to nothing else.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !is_special_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// The special-purpose registry (RFC 6890 and later), multicast and what is reserved.
fn is_special_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, d] = address.octets();
    match a {
        0 | 10 | 127 => true,
        // Carrier-grade NAT.
        100 => (64..128).contains(&b),
        // Link-local, and with it the metadata services of clouds.
        169 => b == 254,
        // Azure's, in the midst of public ones.
        168 => [b, c, d] == [63, 129, 16],
        172 => (16..32).contains(&b),
        192 => b == 168 || b == 0 && (c == 0 || c == 2) || b == 88 && c == 99 || b == 31 && c == 196,
        198 => b == 18 || b == 19 || b == 51 && c == 100,
        203 => b == 0 && c == 113,
        _ => a >= 224,
    }
}

/// Within global unicast (2000::/3), less what is special there: protocol assignments with Teredo and ORCHID
/// (2001::/23), documentation, 6to4. Mapped, compatible, translated (64:ff9b::/96), unique local, link-local and
/// multicast addresses lie outside of it.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let global = (0x2000..0x4000).contains(&a);
    let special = a == 0x2001 && (b < 0x0200 || b == 0x0db8) || a == 0x2002 || a == 0x3fff && b < 0x1000;
    global && !special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "5f00::1",
        ] {
            assert!(!AddressPolicy::default().allows(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn public_addresses_are() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "93.184.216.34",
            "100.63.0.1",
            "172.32.0.1",
            "192.1.0.1",
            "2606:4700::1111",
            "2a00::1",
        ] {
            assert!(AddressPolicy::default().allows(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn a_granted_network_is_that_network_and_no_more() {
        let of = |networks: &[&str]| AddressPolicy::new(networks.iter().map(|n| n.parse().unwrap()).collect());
        let policy = of(&["10.1.0.0/16", "127.0.0.1", "fd00::/8"]);
        let check = |address: &str| policy.allows(address.parse().unwrap());
        assert!(check("10.1.2.3") && check("127.0.0.1") && check("fd00::1"));
        assert!(!check("10.2.0.1") && !check("127.0.0.2") && !check("::ffff:127.0.0.1") && !check("fc00::1"));
        assert!(of(&["0.0.0.0/0"]).allows("10.0.0.1".parse().unwrap()));
        for bad in ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "ten", "10.0.0.0/8/8"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
