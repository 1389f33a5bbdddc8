//! The words that signs are made of, in classes. A word may be in several; a token's class is a set of bits.

/// A set of classes.
pub type Class = u128;

macro_rules! classes {
    ($($name:ident = $bit:literal, $words:literal;)*) => {
        $(pub const $name: Class = 1 << $bit;)*
        const CLASSES: &[(Class, &str)] = &[$(($name, $words)),*];
    };
}

// Accents are folded before words are looked up: `précédentes` stands here without.
classes! {
    IGNORE = 0, "ignore disregard forget neglect override bypass overlook discard dismiss ignorieren ignoriere \
        ignoriert vergiss vergesst missachte missachten ignorez ignorer oublie oubliez oublier ignora ignorar ignoren \
        olvida olvide olvidar esqueca esquece desconsidere dimentica dimenticare negeer vergeet zignoruj ignoruj \
        zapomnij";
    PRIOR = 1, "previous prior above earlier preceding foregoing former existing original initial past before \
        vorherigen vorigen bisherigen obigen vorhergehenden precedentes precedents precedente anteriores anterior \
        previas previos precedenti vorige eerdere poprzednie wczesniejsze old";
    INSTRUCTION = 2, "instruction instructions direction directions directive directives prompt prompts command \
        commands rule rules guideline guidelines guidance constraint constraints programming restrictions safeguards \
        policies anweisung anweisungen regeln instrucciones instrucoes istruzioni instructies instrukcje consignes \
        regles reglas regole regras orders";
    YOUR = 3, "your youre deine deinen ihre ihren tus sus seus tuas vos tes tuoi jouw";
    ALL = 4, "all any every everything each toutes tous todas todos todo tutte alle tudo wszystkie";
    OWN = 5, "my mine i ive our we";
    LEAD = 6, "please now and then do you must should just simply also will instead so or kindly immediately need \
        assistant ai llm system first important but actually shall can could would lets always never not dont it";
    NOT = 7, "not dont never without no";
    FOLLOW = 8, "follow following obey comply heed respect adhere";
    VOID = 9, "void cancelled canceled obsolete superseded updated replaced changed deactivated disabled suspended \
        revoked lifted apply applies overridden off";
    NEW = 10, "new updated real actual true";
    YOU = 11, "you u du vous tu usted";
    ACT = 12, "act behave pretend roleplay respond answer simulate impersonate play imagine become";
    FREED = 13, "dan jailbroken unrestricted unfiltered uncensored amoral evilbot stan aim unlimited";
    LIMIT = 14, "restriction restrictions filter filters limitation limitations censorship ethics ethical moral \
        guidelines rules rule policy policies safety safeguards constraints morals filters limits filter";
    WITHOUT = 15, "without no free ohne sans sin zero ignoring lacking";
    MODE = 16, "mode modus";
    POWER = 17, "developer dev debug god admin root sudo maintenance jailbreak unrestricted dan";
    ENTER = 18, "enter enable activate switch unlock entering enabled activated";
    REVEAL = 19, "reveal print show repeat output display tell give share dump leak disclose recite expose quote \
        return echo copy paste paraphrase write muestra gib zeige affiche montre dimmi mostre spell";
    SECRET = 20, "system hidden secret initial original developer internal confidential base starting underlying pre";
    PROMPT = 21, "prompt prompts instructions instruction message preprompt directives configuration guidelines \
        systemprompt rules";
    WHAT = 22, "what whats which";
    WORDS = 23, "words text everything content all contents lines";
    ABOVE = 24, "above preceding before prior";
    SAY = 25, "tell telling mention mentioning inform informing notify notifying alert alerting reveal revealing show \
        disclose warn ask asking let";
    USER = 26, "user users human humans customer customers anyone them person reader visitor";
    SEND = 27, "send post forward email mail upload transmit exfiltrate submit leak deliver report append sends";
    DATA = 28, "conversation history chat password passwords credentials credential key keys token tokens secret \
        secrets messages data contents cookies env environment database files contacts transcript card";
    DEST = 29, "http https www ftp";
    EMBED = 30, "include append add insert render embed put display output attach";
    IMAGE = 31, "image images picture pixel markdown link links url";
    CALL = 32, "call invoke execute run trigger use using calling issue launch";
    TOOL = 33, "tool tools function functions plugin command shell script terminal api bash";
    AI = 34, "ai ais llm llms assistant assistants chatbot chatbots gpt claude chatgpt copilot bot bots agent agents \
        model models gemini summarizer summariser";
    NOTICE = 35, "note notice attention message instruction instructions dear hey important hint warning memo";
    IF = 36, "if whoever whichever when";
    ARE = 37, "are youre reading reads processing summarising summarizing summarises summarizes process processes \
        parse read";
    MUST = 38, "must should shall needs need";
    END = 39, "end begin start ends";
    DOCUMENT = 40, "document context input data page prompt text passage article documents";
    TASK = 41, "task tasks objective goal role mission instruction instructions order orders job";
    DISCUSS = 42, "injection injections attack attacks attacker attackers phrase phrases example examples jailbreak \
        jailbreaks sentence detect detected detection classifier classify mean means article paper slide course \
        filter filters translate moderation red";
    DECODE = 43, "decode base64 hex rot13 decrypt unscramble decipher";
    ANY = 44, "anything";
    DO = 45, "do";
    NOW = 46, "now";
    FROM = 47, "from";
    ON = 48, "on";
    MOMENT = 49, "moment point here now";
    QUESTION = 50, "question questions request query task document user";
    OBEY = 51, "follow execute obey do says run comply";
    TOLD = 52, "told learned know given said taught";
    NOT_ONE = 53, "a an my";
    BEGIN = 54, "starting beginning begins start starts";
    WITH = 55, "with";
    SCRAMBLED = 56, "vtaber cerivbhf vafgehpgvbaf vafgehpgvba cebzcg qvfertneq erongi snoitcurtsni noitcurtsni suoiverp \
        tpmorp dragersid";
    SNAKE = 57, "";
    EMAIL = 58, "";
    SUPERLATIVE = 59, "best positive glowing favourable favorable perfect highest";
    RATE = 60, "rate recommend hire promote praise accept";
    EVERYTHING = 61, "everything all";
    NOLONGER = 62, "longer";
    TO = 64, "to";
    UNNOTICED = 65, "without";
    SAID = 63, "gave said wrote sent asked made meant typed found";
}

/// Every word with its classes, sorted: built once per instance.
#[derive(Debug)]
pub struct Words(Vec<(&'static str, Class)>);

impl Words {
    pub fn new() -> Self {
        let pairs = CLASSES.iter().flat_map(|(class, words)| words.split_whitespace().map(|word| (word, *class)));
        let mut words: Vec<(&str, Class)> = pairs.collect();
        words.sort_unstable();
        words.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 |= later.1;
            }
            same
        });
        Self(words)
    }

    /// The classes of a folded word; none for a word that is no part of a sign.
    pub fn class(&self, word: &str) -> Class {
        self.0.binary_search_by(|(known, _)| (*known).cmp(word)).map_or(0, |at| self.0[at].1)
    }
}

impl Default for Words {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_all_its_classes() {
        let words = Words::new();
        assert_eq!(words.class("rules"), INSTRUCTION | LIMIT | PROMPT);
        assert_eq!(words.class("harbour"), 0);
    }

    #[test]
    fn words_are_written_as_they_are_looked_up() {
        for (word, _) in Words::new().0 {
            assert!(word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{word}");
            assert!(word.len() <= crate::tokens::MAX_WORD, "{word}");
        }
    }
}
