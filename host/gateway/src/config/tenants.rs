//! Tenants that `[tenants]` speaks of and nobody is of: their limits, budgets and what shall not be stored hold for nobody then.
//! Keys may be made later, so that this is no error; but the name may be misspelt.

use super::Config;
use std::collections::BTreeSet;

/// Names that a line lists.
const MOST_LISTED: usize = 8;

impl Config {
    /// A line about them: none of the keys, certificates and issuers is of theirs.
    pub(crate) fn deserted(&self) -> Option<String> {
        let own = self.own_tenants();
        let by_token = |tenant: &str| self.auth.issuer.iter().any(|issuer| issuer.speaks_for(tenant));
        let deserted =
            self.tenants.keys().map(String::as_str).filter(|tenant| !own.contains(tenant) && !by_token(tenant));
        let deserted: Vec<&str> = deserted.collect();
        if deserted.is_empty() {
            return None;
        }
        let claimed = self.auth.issuer.iter().flat_map(|issuer| &issuer.tenants).map(String::as_str);
        let known: BTreeSet<&str> = own.into_iter().chain(claimed).collect();
        let (deserted, known) = (listed(deserted), listed(known.into_iter().collect()));
        Some(format!(
            "tenants   NOBODY IS OF {deserted}, of which [tenants] speaks: no key, certificate or issuer is; they are of: {known}"
        ))
    }

    /// Those of entries that name one; without any, this machine's.
    fn own_tenants(&self) -> BTreeSet<&str> {
        if self.is_open() {
            return BTreeSet::from([LOCAL]);
        }
        let keys = self.keys.iter().map(|key| key.tenant());
        let certificates = self.auth.certificate.iter().map(|known| known.tenant());
        let issuers = self.auth.issuer.iter().filter_map(|issuer| issuer.tenant.as_deref());
        keys.chain(certificates).chain(issuers).collect()
    }
}

/// Who needs no credential is of it (`Caller::local`).
const LOCAL: &str = "local";

fn listed(names: Vec<&str>) -> String {
    let shown = names.iter().take(MOST_LISTED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST_LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_whose_terms_hold_for_nobody_is_named() {
        let key = |tenant: &str| {
            format!("[[keys]]\nname = \"{tenant}.a\"\ntenant = \"{tenant}\"\nhash = \"blake3:{}\"\n", "0".repeat(64))
        };
        let issuer = "[[auth.issuer]]\nname = \"i\"\nissuer = \"https://i.example\"\naudience = [\"us\"]\n";
        let claimed = format!("{issuer}tenants = [\"org-*\"]\nclaims.tenant = \"org\"\n");
        let said = |tenants: &[&str], others: &str| {
            let tenants: String =
                tenants.iter().map(|name| format!("[tenants.{name}]\nzero_retention = true\n")).collect();
            Config::parse(&format!("{tenants}{others}")).unwrap().deserted()
        };
        let misspelt = said(&["acme-corp", "beta"], &(key("acme") + &key("beta"))).unwrap();
        assert!(
            misspelt.contains("NOBODY IS OF `acme-corp`, of which") && misspelt.ends_with("`acme`, `beta`"),
            "{misspelt}"
        );
        assert_eq!(said(&["acme", "org-7"], &(key("acme") + &claimed)), None);
        assert!(said(&["og-7"], &claimed).unwrap().ends_with("are of: `org-*`"));
        assert_eq!(said(&["t"], &format!("{issuer}tenant = \"t\"\n")), None);
        assert_eq!(said(&["local"], ""), None);
        assert!(said(&["acme"], "").unwrap().ends_with("are of: `local`"));
        let many: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
        let many = said(&many.iter().map(String::as_str).collect::<Vec<_>>(), &key("acme")).unwrap();
        assert!(many.contains("and 12 more"), "{many}");
        assert_eq!(tidegate_types::Caller::local().tenant.as_str(), LOCAL);
    }
}
