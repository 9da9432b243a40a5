from __future__ import annotations

import random
import re
from typing import NamedTuple

# ---
NOUNS = {  # kind of noun: {English: German, its article tells its gender}
    "adult": {
        "man": "der Mann", "woman": "die Frau", "queen": "die Königin",
    },
    "youngster": {
        "boy": "der Junge", "girl": "das Mädchen", "child": "das Kind",
    },
    "animal": {
        "dog": "der Hund", "cat": "die Katze", "horse": "das Pferd",
    },
    "reading": {
        "letter": "der Brief", "newspaper": "die Zeitung",
        "book": "das Buch",
    },
    "food": {
        "apple": "der Apfel", "pear": "die Birne", "egg": "das Ei",
    },
    "place": {
        "garden": "der Garten", "city": "die Stadt", "house": "das Haus",
    },
}
PRONOUNS = {  # English and German
    "he": {"nom": "he er", "acc": "him ihn", "dat": "him ihm"},
    "she": {"nom": "she sie", "acc": "her sie", "dat": "her ihr"},
}
GERMAN = {en: de for nouns in NOUNS.values() for en, de in nouns.items()}
KIND = {en: kind for kind, nouns in NOUNS.items() for en in nouns}
KIND |= dict.fromkeys(PRONOUNS, "pronoun")

# ---
ADJECTIVES = {  # the adjectives that each kind of noun may have
    "adult": ("old", "young", "tired"),
    "youngster": ("small", "big", "tired"),
    "animal": ("old", "young", "small", "big", "new"),
    "reading": ("old", "new"),
    "food": ("small", "big"),
    "place": ("old", "small", "big"),
}
STEMS = {
    "old": "alt", "young": "jung", "small": "klein",
    "big": "groß", "new": "neu", "tired": "müd",
}
DECLENSION = {  # article and adjective ending before
    #               a der-noun    a die-noun    a das-noun
    "the": {
        "nom": ("der -e",     "die -e",     "das -e"),
        "acc": ("den -en",    "die -e",     "das -e"),
        "dat": ("dem -en",    "der -en",    "dem -en"),
    },
    "a": {
        "nom": ("ein -er",    "eine -e",    "ein -es"),
        "acc": ("einen -en",  "eine -e",    "ein -es"),
        "dat": ("einem -en",  "einer -en",  "einem -en"),
    },
}

# ---
class Verb(NamedTuple):
    """One line of the table of verbs."""

    english: str  # he ..., can ..., has ..., particle
    german: str  # er ..., infinitive, participle, separable prefix
    subjects: str  # the kinds of noun that do it
    objects: dict[str, str]  # case: the kinds of noun it is done to
    place: str = "in"  # "in": where; "into": where to
    perfect: str = "hat"  # or "ist"


PEOPLE = "adult youngster pronoun"
LIVING = PEOPLE + " animal"
GIFTS = "animal reading food"
GIVE = {"dat": PEOPLE, "acc": GIFTS}

# ---
VERBS = (
    Verb("sees see seen", "sieht sehen gesehen",
         LIVING, {"acc": LIVING + " reading food"}),
    Verb("reads read read", "liest lesen gelesen",
         PEOPLE, {"acc": "reading"}),
    Verb("buys buy bought", "kauft kaufen gekauft",
         PEOPLE, {"acc": GIFTS}),
    Verb("eats eat eaten", "isst essen gegessen",
         PEOPLE, {"acc": "food"}),
    Verb("eats eat eaten", "frisst fressen gefressen",
         "animal", {"acc": "food"}),
    Verb("helps help helped", "hilft helfen geholfen",
         PEOPLE, {"dat": LIVING}),
    Verb("gives give given", "gibt geben gegeben", PEOPLE, GIVE),
    Verb("shows show shown", "zeigt zeigen gezeigt", PEOPLE, GIVE),
    Verb("calls call called up", "ruft anrufen angerufen an",
         PEOPLE, {"acc": PEOPLE}),
    Verb("invites invite invited", "lädt einladen eingeladen ein",
         PEOPLE, {"acc": PEOPLE}, "into"),
    Verb("sleeps sleep slept", "schläft schlafen geschlafen",
         LIVING, {}),
    Verb("goes go gone", "geht gehen gegangen",
         LIVING, {}, "into", "ist"),
    Verb("comes come come back",
         "kommt zurückkommen zurückgekommen zurück",
         LIVING, {}, "into", "ist"),
)

# ---
AUXILIARIES = {  # what may stand before an English verb, and its German
    "": "", "does not": "",
    "has": "hat", "has not": "hat",
    "can": "kann", "cannot": "kann",
    "must": "muss", "must not": "darf",  # a false friend
    "wants to": "will", "does not want to": "will",
}
TIMES = {
    "today": "heute", "tomorrow": "morgen", "in the evening": "am Abend",
}
CONJUNCTIONS = {"that": "dass", "because": "weil", "if": "wenn"}
SPEECH = (  # the verbs before "that"
    Verb("says say said", "sagt sagen gesagt", PEOPLE, {}),
    Verb("hears hear heard", "hört hören gehört", PEOPLE, {}),
)


def timely(time: str, auxiliary: str) -> bool:
    """Whether an English tense goes with a time."""
    if auxiliary in ("has", "has not"):
        return time in ("", "today")
    return time != "tomorrow" or auxiliary not in ("", "does not")


# ---
class Phrase(NamedTuple):
    """A noun phrase: the old man, a cat; he (no article)."""

    article: str  # "the", "a" or ""
    adjective: str  # or ""
    noun: str  # or "he", "she"


class Clause(NamedTuple):
    """What a clause says, in no language's order of words."""

    subject: Phrase
    auxiliary: str
    verb: Verb
    objects: tuple[Phrase, ...]  # in the order of verb.objects
    swapped: bool  # "a book to the child" for "the child a book"
    place: Phrase | None
    time: str
    front: str  # what stands first: "", "place" or "time"


# ---
def fits(phrase: Phrase, kinds: str) -> bool:
    """Whether a noun is of one of the kinds, and its adjective suits."""
    kind = KIND.get(phrase.noun)
    adjectives = ("", *ADJECTIVES.get(kind, ()))
    return kind in kinds.split() and phrase.adjective in adjectives


def makes_sense(c: Clause) -> bool:
    """Whether such a one does such a thing to such a one, at that time."""
    things = [c.subject, *c.objects]
    kinds = [c.verb.subjects, *c.verb.objects.values()]
    return (
        len(things) == len(kinds)
        and all(map(fits, things, kinds))
        and len({thing.noun for thing in things}) == len(things)
        and (c.place is None or fits(c.place, "place"))
        and timely(c.time, c.auxiliary)
    )


def one_order(c: Clause) -> bool:
    """Whether German leaves no doubt about order and negation."""
    articles = [thing.article for thing in c.objects]
    doubts = [
        "" in articles and c.subject.article == "a",
        articles == ["a", "the"],
    ]
    if "not" in c.auxiliary:
        doubts += [
            c.subject.article == "a",
            articles == ["a", "a"],
            c.place and c.verb.place == "in" and c.front != "place",
        ]
    return not any(doubts)

# ---
def english_phrase(phrase: Phrase, case: str = "nom") -> str:
    """The old man, an apple; him when the case is not nominative."""
    if phrase.noun in PRONOUNS:
        return PRONOUNS[phrase.noun][case].split()[0]
    article, *rest = filter(None, phrase)
    if article == "a" and rest[0][0] in "aeiou":
        article = "an"
    return " ".join([article, *rest])


def german_phrase(phrase: Phrase, case: str, no: bool = False) -> str:
    """The German of a noun phrase; with `no`, kein for ein."""
    if phrase.noun in PRONOUNS:
        return PRONOUNS[phrase.noun][case].split()[1]
    article, noun = GERMAN[phrase.noun].split()
    gender = ("der", "die", "das").index(article)
    article, ending = DECLENSION[phrase.article][case][gender].split()
    words = ["k" + article if no else article]
    if phrase.adjective:
        words.append(STEMS[phrase.adjective] + ending.strip("-"))
    if noun == "Junge" and case != "nom":
        noun = "Jungen"  # the one noun here that changes in the singular
    return " ".join([*words, noun])


# ---
def english(c: Clause) -> str:
    """Subject, verb, objects, particle, place, time; one in front."""
    third, infinitive, participle, *particle = c.verb.english.split()
    forms = {"": third, "has": participle, "has not": participle}
    objects = [
        english_phrase(thing, case)
        for thing, case in zip(c.objects, c.verb.objects)
    ]
    if c.swapped:
        objects = [objects[1], "to", objects[0]]
    place = f"{c.verb.place} {english_phrase(c.place)}" if c.place else ""
    front = {"place": place, "time": c.time}.get(c.front, "")
    words = [
        front, english_phrase(c.subject), c.auxiliary,
        forms.get(c.auxiliary, infinitive), *objects, *particle,
        place if c.front != "place" else "",
        c.time if c.front != "time" else "",
    ]
    return " ".join(filter(None, words))


# ---
def german_verb(c: Clause) -> tuple[str, str]:
    """What is conjugated, and what stands at the end of the clause."""
    third, infinitive, participle, *prefix = c.verb.german.split()
    auxiliary = AUXILIARIES[c.auxiliary]
    if auxiliary == "":  # ruft ... an
        return third, "".join(prefix)
    if auxiliary == "hat":  # hat ... angerufen, ist ... gegangen
        return c.verb.perfect, participle
    return auxiliary, infinitive  # kann ... anrufen


def german_place(c: Clause) -> str:
    """Where (dative) or where to (accusative); im = in dem."""
    case = "dat" if c.verb.place == "in" else "acc"
    place = "in " + german_phrase(c.place, case)
    return re.sub("^in dem", "im", re.sub("^in das", "ins", place))


# ---
def german_middle(c: Clause) -> list[str]:
    """All between the two parts of the verb, but for the subject."""
    known, new, negation, direction = [], [], [], []
    negative = "not" in c.auxiliary
    for thing, case in zip(c.objects, c.verb.objects):
        if thing.article == "a":
            new.append(german_phrase(thing, case, no=negative))
        else:
            known.append(german_phrase(thing, case))
    if negative and not new:
        negation.append("nicht")
    if c.time and c.front != "time":
        known.append(TIMES[c.time])
    if c.place and c.verb.place == "into":
        direction.append(german_place(c))
    elif c.place and c.front != "place":
        known.append(german_place(c))
    return known + new + negation + direction


def german(c: Clause, order: str = "second") -> str:
    """The clause with its verb first, second or last."""
    subject = german_phrase(c.subject, "nom")
    verb, end = german_verb(c)
    middle = german_middle(c)
    if order == "last":  # a prefix goes back to its verb
        glue = "" if AUXILIARIES[c.auxiliary] == "" else " "
        return " ".join([subject, *middle, end + glue + verb])
    words = [verb, subject, *middle, end]
    if order == "second":
        if c.front == "time":
            words.insert(0, TIMES[c.time])
        elif c.front == "place":
            words.insert(0, german_place(c))
        else:
            words[:2] = subject, verb
    return " ".join(filter(None, words))


# ---
def english_verbs() -> dict[str, list[tuple[str, Verb]]]:
    """"does not call up" -> [("does not", the verb "call up")]."""
    found: dict[str, list[tuple[str, Verb]]] = {}
    he = Phrase("", "", "he")
    for verb in VERBS + SPEECH:
        for auxiliary in AUXILIARIES:
            bare = Clause(he, auxiliary, verb, (), False, None, "", "")
            words = english(bare).removeprefix("he ")
            found.setdefault(words, []).append((auxiliary, verb))
    return found


ENGLISH_VERBS = english_verbs()
PHRASE = re.compile(
    r"\b(?:(to|in|into) )?(?:"
    rf"(the|a)n? (?:({'|'.join(STEMS)}) )?({'|'.join(GERMAN)})"
    r"|(he|she|him|her))\b"
)


# ---
def noun_phrases(sentence: str) -> tuple[dict, str]:
    """Noun phrases by the preposition before them; the words left over."""
    found = {"": [], "to": [], "in": [], "into": []}
    for preposition, *phrase, pronoun in PHRASE.findall(sentence):
        if pronoun:
            phrase = ["", "", "he" if pronoun in ("he", "him") else "she"]
        found[preposition].append(Phrase(*phrase))
    return found, " ".join(PHRASE.sub("", sentence).split())


def parse(sentence: str, verbs=VERBS) -> Clause:
    """What a clause in English says.

    A rough guess will do: it is right if it is allowed and, put back in
    English, gives the sentence. Raises ValueError if there is none.
    """
    time = next((time for time in TIMES if time in sentence), "")
    found, verb_words = noun_phrases(sentence.replace(time, ""))
    subject, *objects = found[""] or [Phrase("", "", "")]
    place, *_ = *found["in"], *found["into"], None
    front = "place" if sentence.startswith("in ") else ""
    if time and sentence.startswith(time):
        front = "time"
    for auxiliary, verb in ENGLISH_VERBS.get(verb_words, ()):
        clause = Clause(
            subject, auxiliary, verb, (*found["to"], *objects),
            found["to"] != [], place, time, front,
        )
        if (
            verb in verbs and makes_sense(clause) and one_order(clause)
            and english(clause) == sentence
        ):
            return clause
    raise ValueError(f"not in mini German: {sentence!r}")


# ---
def translate(sentence: str) -> str:
    """The one right German of an English sentence.

    Raises ValueError, naming the clause, for one that is not made of the
    words and in the ways of the tables of chapter 0.
    """
    words = sentence.split()
    kind = next((word for word in CONJUNCTIONS if word in words), "")
    if kind == "":
        return german(parse(sentence))
    if kind == "if":
        side, _, main = sentence.removeprefix("if ").partition(" , ")
    else:
        main, _, side = sentence.partition(f" {kind} ")
    main = parse(main, SPEECH if kind == "that" else VERBS)
    side = parse(side)
    if (
        side.front or kind == "if" and main.front
        or main.subject.noun == side.subject.noun not in PRONOUNS
    ):
        raise ValueError(f"not in mini German: {sentence!r}")
    dependent = f"{CONJUNCTIONS[kind]} {german(side, 'last')}"
    if kind == "if":
        return f"{dependent} , {german(main, 'first')}"
    return f"{german(main)} , {dependent}"


# ---
def one(rng: random.Random, options):
    """One of the options at random.

    Only random() is promised to give the same on every version of
    Python; choice() is not.
    """
    return options[int(rng.random() * len(options))]


def draw_phrase(rng: random.Random, kinds: str) -> Phrase:
    """A noun phrase of one of the kinds; half of them with adjective."""
    nouns = [noun for noun in KIND if KIND[noun] in kinds.split()]
    noun = one(rng, nouns)
    if noun in PRONOUNS:
        return Phrase("", "", noun)
    adjectives = ("", one(rng, ADJECTIVES[KIND[noun]]))
    return Phrase(one(rng, ("the", "a")), one(rng, adjectives), noun)


def draw_clause(rng: random.Random, verbs=VERBS) -> str:
    """An English clause, which may break a rule of the language."""
    verb = one(rng, verbs)
    kinds = verb.objects.values()
    place = one(rng, (None, None, draw_phrase(rng, "place")))
    fronts = ("", "", "time", "place" if verb.place == "in" else "")
    return english(Clause(
        subject=draw_phrase(rng, verb.subjects),
        auxiliary=one(rng, tuple(AUXILIARIES)),
        verb=verb,
        objects=tuple(draw_phrase(rng, kind) for kind in kinds),
        swapped=len(kinds) == 2 and rng.random() < 0.5,
        place=place,
        time=one(rng, ("", *TIMES)),
        front=one(rng, fronts),
    ))


# ---
def sample(rng: random.Random, clauses: bool = False) -> tuple[str, str]:
    """A random pair: an English sentence and its German."""
    kinds = ("", *CONJUNCTIONS) if clauses else ("",)
    while True:  # until a sentence breaks no rule
        kind = one(rng, kinds)
        sentence = draw_clause(rng, SPEECH if kind == "that" else VERBS)
        if kind == "if":
            sentence = f"if {draw_clause(rng)} , {sentence}"
        elif kind:
            sentence = f"{sentence} {kind} {draw_clause(rng)}"
        try:
            return sentence, translate(sentence)
        except ValueError:
            continue


# ---
def split(
    n_train: int, n_dev: int, n_test: int, seed: int = 0,
    clauses: bool = False,
) -> tuple[list[tuple[str, str]], ...]:
    rng = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < n_train + n_dev + n_test:
        pairs.update([sample(rng, clauses)])
    pairs = list(pairs.items())
    return (
        pairs[:n_train], pairs[n_train:n_train + n_dev],
        pairs[n_train + n_dev:],
    )
