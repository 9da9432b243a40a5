"""The running task: its German is right, and one for every sentence."""

import hashlib
import itertools
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from transformer18.mini_german import (
    ADJECTIVES,
    AUXILIARIES,
    CONJUNCTIONS,
    GERMAN,
    KIND,
    NOUNS,
    PRONOUNS,
    SIZE,
    SIZE_WITH_CLAUSES,
    SPEECH,
    STEMS,
    TIMES,
    VERBS,
    Clause,
    Phrase,
    english,
    english_phrase,
    german_phrase,
    is_clear,
    makes_sense,
    parse,
    sample,
    split,
    translate,
    words,
)


def draw(n, clauses=False, seed=0):
    rng = random.Random(seed)
    return [sample(rng, clauses) for _ in range(n)]


# --- German written by hand -----------------------------------------------

NOUN_FORMS = {  # nominative, accusative, dative; with the, then with a
    "man": "der Mann, den Mann, dem Mann, ein Mann, einen Mann, einem Mann",
    "woman": "die Frau, die Frau, der Frau, eine Frau, eine Frau, einer Frau",
    "queen": "die Königin, die Königin, der Königin,"
    " eine Königin, eine Königin, einer Königin",
    "boy": "der Junge, den Jungen, dem Jungen,"
    " ein Junge, einen Jungen, einem Jungen",
    "girl": "das Mädchen, das Mädchen, dem Mädchen,"
    " ein Mädchen, ein Mädchen, einem Mädchen",
    "child": "das Kind, das Kind, dem Kind, ein Kind, ein Kind, einem Kind",
    "dog": "der Hund, den Hund, dem Hund, ein Hund, einen Hund, einem Hund",
    "cat": "die Katze, die Katze, der Katze,"
    " eine Katze, eine Katze, einer Katze",
    "horse": "das Pferd, das Pferd, dem Pferd,"
    " ein Pferd, ein Pferd, einem Pferd",
    "letter": "der Brief, den Brief, dem Brief,"
    " ein Brief, einen Brief, einem Brief",
    "newspaper": "die Zeitung, die Zeitung, der Zeitung,"
    " eine Zeitung, eine Zeitung, einer Zeitung",
    "book": "das Buch, das Buch, dem Buch, ein Buch, ein Buch, einem Buch",
    "apple": "der Apfel, den Apfel, dem Apfel,"
    " ein Apfel, einen Apfel, einem Apfel",
    "pear": "die Birne, die Birne, der Birne,"
    " eine Birne, eine Birne, einer Birne",
    "egg": "das Ei, das Ei, dem Ei, ein Ei, ein Ei, einem Ei",
    "garden": "der Garten, den Garten, dem Garten,"
    " ein Garten, einen Garten, einem Garten",
    "city": "die Stadt, die Stadt, der Stadt,"
    " eine Stadt, eine Stadt, einer Stadt",
    "house": "das Haus, das Haus, dem Haus,"
    " ein Haus, ein Haus, einem Haus",
}


@pytest.mark.parametrize("noun", GERMAN)
def test_every_noun_in_every_case(noun):
    said = [
        german_phrase(Phrase(article, "", noun), case)
        for article in ("the", "a")
        for case in ("nom", "acc", "dat")
    ]
    assert said == NOUN_FORMS[noun].split(", ")


ADJECTIVE_FORMS = {
    "old": "der alte Mann, den alten Mann, dem alten Mann,"
    " ein alter Mann, einen alten Mann, einem alten Mann",
    "young": "die junge Frau, die junge Frau, der jungen Frau,"
    " eine junge Frau, eine junge Frau, einer jungen Frau",
    "tired": "das müde Kind, das müde Kind, dem müden Kind,"
    " ein müdes Kind, ein müdes Kind, einem müden Kind",
    "small": "der kleine Junge, den kleinen Jungen, dem kleinen Jungen,"
    " ein kleiner Junge, einen kleinen Jungen, einem kleinen Jungen",
    "big": "die große Birne, die große Birne, der großen Birne,"
    " eine große Birne, eine große Birne, einer großen Birne",
    "new": "das neue Buch, das neue Buch, dem neuen Buch,"
    " ein neues Buch, ein neues Buch, einem neuen Buch",
}
WITH = {"old": "man", "young": "woman", "tired": "child", "small": "boy"}
WITH |= {"big": "pear", "new": "book"}


@pytest.mark.parametrize("adjective", STEMS)
def test_every_adjective_in_every_case(adjective):
    said = [
        german_phrase(Phrase(article, adjective, WITH[adjective]), case)
        for article in ("the", "a")
        for case in ("nom", "acc", "dat")
    ]
    assert said == ADJECTIVE_FORMS[adjective].split(", ")


def test_every_adjective_ending():
    """der/die/das and ein/eine/ein, by gender and case, from a grammar."""
    endings = {
        ("the", "nom"): "e e e", ("the", "acc"): "en e e",
        ("the", "dat"): "en en en", ("a", "nom"): "er e es",
        ("a", "acc"): "en e es", ("a", "dat"): "en en en",
    }
    genders = {"der": 0, "die": 1, "das": 2}
    for noun, kind in KIND.items():
        for adjective in ADJECTIVES.get(kind, []):
            gender = genders[GERMAN[noun].split()[0]]
            for (article, case), row in endings.items():
                said = german_phrase(Phrase(article, adjective, noun), case)
                right = STEMS[adjective] + row.split()[gender]
                assert said.split()[1] == right


SENTENCES = """
# the sentence of the book, and the dative shift
the old man gives the child a book | der alte Mann gibt dem Kind ein Buch
the old man gives a book to the child | der alte Mann gibt dem Kind ein Buch
she shows the boy the dog | sie zeigt dem Jungen den Hund
she has shown the dog to the boy | sie hat dem Jungen den Hund gezeigt
he gives her an apple | er gibt ihr einen Apfel
he gives the apple to her | er gibt ihr den Apfel
she shows him the letter today | sie zeigt ihm den Brief heute
today the girl has shown him a letter | heute hat das Mädchen ihm einen Brief gezeigt
# every verb: now, done, and its infinitive
the dog sees the cat | der Hund sieht die Katze
the dog has seen the cat | der Hund hat die Katze gesehen
the dog can see the cat | der Hund kann die Katze sehen
the queen reads the old letter | die Königin liest den alten Brief
the queen has read the old letter | die Königin hat den alten Brief gelesen
the queen wants to read the old letter | die Königin will den alten Brief lesen
the woman buys a horse in the city | die Frau kauft in der Stadt ein Pferd
the woman has bought a horse | die Frau hat ein Pferd gekauft
the woman must buy a horse | die Frau muss ein Pferd kaufen
the child eats an egg | das Kind isst ein Ei
the child has eaten an egg | das Kind hat ein Ei gegessen
the child can eat an egg | das Kind kann ein Ei essen
the horse eats a pear | das Pferd frisst eine Birne
the horse has eaten a pear | das Pferd hat eine Birne gefressen
the horse can eat a pear | das Pferd kann eine Birne fressen
he helps the boy | er hilft dem Jungen
he has helped a cat | er hat einer Katze geholfen
he must help her | er muss ihr helfen
the man shows the woman a newspaper | der Mann zeigt der Frau eine Zeitung
the man gives the woman the newspaper | der Mann gibt der Frau die Zeitung
the man has given the woman the newspaper | der Mann hat der Frau die Zeitung gegeben
the man can give the woman the newspaper | der Mann kann der Frau die Zeitung geben
the man can show the woman the newspaper | der Mann kann der Frau die Zeitung zeigen
the girl calls the old woman up | das Mädchen ruft die alte Frau an
the girl has called the old woman up | das Mädchen hat die alte Frau angerufen
the girl wants to call the old woman up | das Mädchen will die alte Frau anrufen
the queen invites a tired man into the garden | \
die Königin lädt einen müden Mann in den Garten ein
the queen has invited him | die Königin hat ihn eingeladen
the queen wants to invite him | die Königin will ihn einladen
the young cat sleeps in the house | die junge Katze schläft im Haus
the young cat has slept in the garden | die junge Katze hat im Garten geschlafen
the young cat wants to sleep | die junge Katze will schlafen
a tired child goes into the house | ein müdes Kind geht ins Haus
a tired child has gone into the city | ein müdes Kind ist in die Stadt gegangen
a tired child must go | ein müdes Kind muss gehen
the dog comes back | der Hund kommt zurück
the dog has come back into the garden today | \
der Hund ist heute in den Garten zurückgekommen
the dog can come back tomorrow | der Hund kann morgen zurückkommen
# what stands in front, and time before place
today the small boy buys a new book in the city | \
heute kauft der kleine Junge in der Stadt ein neues Buch
in the garden the old woman has called the man up today | \
im Garten hat die alte Frau den Mann heute angerufen
the boy reads the book in the garden in the evening | \
der Junge liest das Buch am Abend im Garten
the boy reads a book in the garden in the evening | \
der Junge liest am Abend im Garten ein Buch
in the evening a dog sleeps in the garden | am Abend schläft ein Hund im Garten
tomorrow he must help a young woman in the house | \
morgen muss er im Haus einer jungen Frau helfen
# no and not
she does not see him today | sie sieht ihn heute nicht
she has not seen the boy | sie hat den Jungen nicht gesehen
he does not read a book | er liest kein Buch
he cannot eat the egg in the evening | er kann das Ei am Abend nicht essen
today the man has not bought a dog | heute hat der Mann keinen Hund gekauft
he has not helped an old woman | er hat keiner alten Frau geholfen
he has not helped a dog | er hat keinem Hund geholfen
she does not give the child an old newspaper | sie gibt dem Kind keine alte Zeitung
she does not give the child the pear | sie gibt dem Kind die Birne nicht
the child must not go into the garden | das Kind darf nicht in den Garten gehen
the dog must not eat an egg | der Hund darf kein Ei fressen
he does not want to come back | er will nicht zurückkommen
the man does not call the girl up | der Mann ruft das Mädchen nicht an
the man does not invite the girl into the house | \
der Mann lädt das Mädchen nicht ins Haus ein
in the city the dog does not sleep | in der Stadt schläft der Hund nicht
# subordinate clauses
the old man says that he has seen the dog | \
der alte Mann sagt , dass er den Hund gesehen hat
today she has heard that the boy comes back | \
heute hat sie gehört , dass der Junge zurückkommt
the woman hears that a dog has slept | die Frau hört , dass ein Hund geschlafen hat
she has said that he goes | sie hat gesagt , dass er geht
he wants to hear that the child sleeps | er will hören , dass das Kind schläft
he must not say that the queen calls her up | \
er darf nicht sagen , dass die Königin sie anruft
she cannot help him because the dog has gone into the city | \
sie kann ihm nicht helfen , weil der Hund in die Stadt gegangen ist
the child sleeps because the boy does not invite a girl | \
das Kind schläft , weil der Junge kein Mädchen einlädt
if the horse wants to eat an apple in the evening , the girl goes into the garden | \
wenn das Pferd am Abend einen Apfel fressen will , geht das Mädchen in den Garten
if she calls the man up , he must not come back tomorrow | \
wenn sie den Mann anruft , darf er morgen nicht zurückkommen
"""


def by_hand():
    text = SENTENCES.replace("\\\n", "").strip()
    for line in text.splitlines():
        if not line.startswith("#"):
            yield tuple(line.split(" | "))


@pytest.mark.parametrize(("sentence", "right"), list(by_hand()))
def test_translations_by_hand(sentence, right):
    assert translate(sentence) == right


def test_the_sentences_by_hand_use_every_verb_in_every_form():
    said = " ".join(right for _, right in by_hand()).split()
    for verb in VERBS + SPEECH:
        assert set(verb.german.split()) <= {*said}, verb.german


# --- what is not in the language ------------------------------------------

@pytest.mark.parametrize(
    "sentence",
    [
        "",
        " ",
        "hello",
        "sleeps",
        "the man",
        "the man gives a book",  # to whom?
        "the man sleeps the dog",
        "the dog reads a book",
        "the man eats the dog",
        "the old child sleeps",
        "the man sees the man",
        "he sees him",
        "the man see the dog",
        "the man has see the dog",
        "the man sees an dog",
        "the man sees a apple",
        "the man sees the dog tomorrow",  # English: will see
        "the man has seen the dog in the evening",
        "a man sees him",
        "the man gives a child the book",
        "a man does not sleep",
        "the man does not sleep in the garden",
        "into the garden the man goes",
        "the man sleeps into the garden",
        "the man goes in the garden",
        "in the garden today the man sleeps",
        "today the man sleeps today",
        "The man sleeps",
        "the man sleeps .",
        "the man  sleeps",
        "the man sleeps ",
        "then man sleeps",
        "the man says that",
        "the man says",
        "the man sleeps that he goes",
        "the man says that the man sleeps",
        "the man says that today he sleeps",
        "if the man sleeps the dog sleeps",
        "if the man sleeps , today the dog sleeps",
        "the man sleeps because",
        "because the man sleeps",
        "the man sleeps because he goes because he sleeps",
        "der Mann schläft",
    ],
)
def test_what_is_outside_raises_and_names_it(sentence):
    with pytest.raises(ValueError, match="is not in mini German") as error:
        translate(sentence)
    assert "\n" not in str(error.value)
    named = str(error.value).split("'")[1]
    assert named in sentence


# --- properties of whole samples ------------------------------------------

def every_clause(verb, with_adjectives):
    """Each clause of a verb that is in the language."""
    def phrases(kinds):
        for noun, kind in KIND.items():
            if kind not in kinds.split():
                continue
            if noun in PRONOUNS:
                yield Phrase("", "", noun)
                continue
            adjectives = ADJECTIVES[kind] if with_adjectives else []
            for article in ("the", "a"):
                for adjective in ["", *adjectives]:
                    yield Phrase(article, adjective, noun)

    for subject, objects, auxiliary, swapped, place, time, front in (
        itertools.product(
            phrases(verb.subjects),
            itertools.product(*map(phrases, verb.objects.values())),
            AUXILIARIES, (False, True), ("", *NOUNS["place"]),
            ("", *TIMES), ("", "place", "time"),
        )
    ):
        clause = Clause(
            subject, auxiliary, verb, objects, swapped, place, time, front
        )
        # ways of writing down a clause that are other clauses
        if swapped and len(objects) != 2:
            continue
        if front == "time" and not time:
            continue
        if front == "place" and (not place or verb.place == "into"):
            continue
        if makes_sense(clause) and is_clear(clause):
            yield clause


SMALL = [verb for verb in VERBS + SPEECH if len(verb.objects) == 0]
SMALL += [verb for verb in VERBS if set(verb.objects.values()) == {"food"}]


@pytest.mark.parametrize("verb", SMALL, ids=lambda v: v.german.split()[1])
def test_every_clause_of_a_verb_is_one_sentence_and_back(verb):
    """The English says the clause, that clause and no other."""
    said = set()
    for clause in every_clause(verb, with_adjectives=True):
        sentence = english(clause)
        assert sentence not in said
        said.add(sentence)
        assert parse(sentence, VERBS + SPEECH) == clause
    assert len(said) == sum(count([verb]).values())


@pytest.mark.parametrize("clauses", [False, True])
def test_german_is_a_function_of_english(clauses):
    german_of = {}
    for sentence, german in draw(6000, clauses):
        assert german_of.setdefault(sentence, german) == german
        assert translate(sentence) == german


@pytest.mark.parametrize("clauses", [False, True])
def test_words_are_just_the_words_that_occur(clauses):
    pairs = draw(10_000, clauses)
    seen = [
        sorted({word for pair in pairs for word in pair[side].split()})
        for side in (0, 1)
    ]
    assert (seen[0], seen[1]) == words(clauses)


def test_number_of_words():
    assert [len(side) for side in words()] == [81, 118]
    assert [len(side) for side in words(clauses=True)] == [91, 131]


def test_capitals_are_for_nouns():
    nouns = {german.split()[1] for german in GERMAN.values()}
    nouns |= {"Jungen", "Abend"}
    for word in words(clauses=True)[1]:
        assert word[0].isupper() == (word in nouns), word
    assert all(word == word.lower() for word in words(clauses=True)[0])


def test_the_verb_is_second_and_the_rest_of_it_last():
    for sentence, german in draw(5000):
        clause, said = parse(sentence), german.split()
        first = german_phrase(clause.subject, "nom")
        if clause.front == "time":
            first = TIMES[clause.time]
        if clause.front == "place":
            first = {
                "garden": "im Garten", "city": "in der Stadt",
                "house": "im Haus",
            }[clause.place]
        third, infinitive, participle, *prefix = clause.verb.german.split()
        second, last = {
            "": (third, prefix), "hat": (clause.verb.perfect, [participle]),
        }.get(
            AUXILIARIES[clause.auxiliary],
            (AUXILIARIES[clause.auxiliary], [infinitive]),
        )
        assert german.startswith(f"{first} {second}")
        assert said[len(said) - len(last):] == last


def test_one_comma_and_the_verb_last_in_every_subordinate_clause():
    finite = {"hat", "ist", "kann", "muss", "darf", "will"}
    for verb in VERBS + SPEECH:
        third, _, _, *prefix = verb.german.split()
        finite |= {third, "".join(prefix) + third}
    links = Counter()
    for sentence, german in draw(5000, clauses=True):
        link = set(german.split()) & set(CONJUNCTIONS.values())
        assert german.count(",") == german.count(" , ") == len(link) <= 1
        assert sentence.count(" , ") == ("wenn" in link)
        for name in link:
            links[name] += 1
            before, after = german.split(" , ")
            side = before if name == "wenn" else after
            assert side.split()[0] == name
            assert side.split()[-1] in finite
            if name == "wenn":  # then the verb of the main clause
                assert after.split()[0] in finite
    assert min(links[name] for name in CONJUNCTIONS.values()) > 1000


def test_negation_is_said_once():
    for sentence, german in draw(5000):
        no = [
            word for word in german.split()
            if word == "nicht" or word.startswith("kein")
        ]
        negative = "not" in parse(sentence).auxiliary
        assert len(no) == negative, german


def test_an_stands_before_vowels():
    for sentence, _ in draw(2000):
        for word, after in itertools.pairwise(sentence.split()):
            if word in ("a", "an"):
                assert (word == "an") == (after[0] in "aeiou")
    assert english_phrase(Phrase("a", "", "egg")) == "an egg"
    assert english_phrase(Phrase("a", "big", "egg")) == "a big egg"


# --- how many there are ---------------------------------------------------

def count(verbs, fronts=True):
    """Clauses by the noun of their subject, counted by the rules alone."""
    def adverbs(place_kind, swaps, subject, objects):
        total = 0
        for auxiliary, time, place, front in itertools.product(
            AUXILIARIES, ("", *TIMES), ("", *NOUNS["place"]),
            ("", "time", "place") if fronts else ("",),
        ):
            perfect = auxiliary.startswith("has")
            modal = auxiliary not in ("", "does not") and not perfect
            no = "not" in auxiliary
            total += swaps * (not any((
                perfect and time not in ("", "today"),
                time == "tomorrow" and not modal,
                front == "time" and not time,
                front == "place" and not (place and place_kind == "in"),
                "" in objects and subject == "a",
                len(objects) == 2 and objects[0] == "a",
                no and subject == "a",
                no and place and place_kind == "in" and front != "place",
            )))
        return total

    def phrases(kinds):
        for noun, kind in KIND.items():
            if kind in kinds.split():
                if kind == "pronoun":
                    yield noun, "", 1
                else:
                    for article in ("the", "a"):
                        yield noun, article, 1 + len(ADJECTIVES[kind])

    totals, known = Counter(), {}
    for verb in verbs:
        rows = [phrases(kinds) for kinds in verb.objects.values()]
        for (who, article, ways), *things in itertools.product(
            list(phrases(verb.subjects)), *map(list, rows)
        ):
            nouns = [noun for noun, _, _ in things]
            if len({who, *nouns}) < 1 + len(nouns):
                continue
            for _, _, more in things:
                ways *= more
            key = (
                verb.place, 1 + (len(things) == 2), article,
                tuple(each for _, each, _ in things),
            )
            if key not in known:
                known[key] = adverbs(*key)
            totals[who] += ways * known[key]
    return totals


def test_size():
    plain, side = count(VERBS), count(VERBS, fronts=False)
    spoken = count(SPEECH)

    def together(main):
        return sum(
            main[one] * side[other]
            for one in main for other in side
            if one != other or one in PRONOUNS
        )

    assert sum(plain.values()) == SIZE
    two_clauses = together(plain) + together(side) + together(spoken)
    assert SIZE + two_clauses == SIZE_WITH_CLAUSES
    assert SIZE > 1_000_000
    assert f"{SIZE:,}" in split.__doc__
    rounded = f"{SIZE_WITH_CLAUSES:.1e}".replace("e+", " * 10^")
    assert rounded in split.__doc__


# --- split ----------------------------------------------------------------

@pytest.mark.parametrize("clauses", [False, True])
def test_split_is_disjoint_and_has_no_duplicates(clauses):
    train, dev, test = split(3000, 200, 300, seed=1, clauses=clauses)
    assert [len(train), len(dev), len(test)] == [3000, 200, 300]
    pairs = train + dev + test
    assert len({sentence for sentence, _ in pairs}) == len(pairs)
    assert all(translate(sentence) == german for sentence, german in pairs)


def test_split_keeps_the_held_out_sets_and_nests_the_training_sets():
    small, large = split(100, 50, 60, seed=3), split(400, 50, 60, seed=3)
    assert small[1:] == large[1:]
    assert small[0] == large[0][:100]
    assert split(100, 50, 60, seed=4)[2] != small[2]


def fingerprint():
    text = repr((split(500, 50, 50, seed=0), split(50, 5, 5, 7, True)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_split_is_the_same_everywhere():
    """On all platforms, in all versions, whatever the order of hashes."""
    assert fingerprint() == FINGERPRINT
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; "
        "import test_mini_german as t; print(t.fingerprint())"
    )
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code, os.path.dirname(__file__), *sys.path],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        )
        assert run.stdout.strip() == FINGERPRINT


def test_split_of_nothing():
    assert split(0, 0, 0) == ([], [], [])


@pytest.mark.parametrize("clauses", [False, True])
def test_split_names_what_there_is_when_asked_for_more(clauses):
    size = SIZE_WITH_CLAUSES if clauses else SIZE
    with pytest.raises(ValueError, match=f"{size:,}"):
        split(size, 1, 0, clauses=clauses)
    with pytest.raises(ValueError, match="-1"):
        split(5, -1, 0, clauses=clauses)


def test_unseen_sentences_are_made_of_seen_words():
    train, dev, test = split(10_000, 500, 1000)
    for side in (0, 1):
        seen = {word for pair in train for word in pair[side].split()}
        assert seen == set(words()[side])


FINGERPRINT = "783a2d513f8e7c69"
