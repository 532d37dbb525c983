"""Who is asked, what is sent, on what a silo is scored, and how well it goes."""

from dataclasses import asdict

import pytest
import torch

from anabranch.errors import QuorumError, UsageError
from anabranch.federation import (
    KINDS,
    Envelope,
    Federation,
    Participation,
    Policy,
    RemoteEngine,
    Silo,
    Site,
    tensors_of,
)
from anabranch.methods.personal import (
    LocalSteps,
    PersonalServer,
    PersonalSettings,
    Score,
    train_clustered,
    train_personal,
)
from anabranch.methods.personal._networks import HEAD, initial_body
from anabranch.seeds import derive, generator

METHODS = ["fedavg", "fedper", "fedrep"]


@pytest.mark.parametrize("method", METHODS)
def test_two_gaussian_classes_a_silo_are_learned(lab, method):
    settings = lab.settings(method, rounds=12, participation=0.5, hidden=(32, 16), tune_epochs=10)
    result = train_personal(lab.silos(6, count=60), settings, seed=1)
    assert result.final >= 0.95
    assert not result.failures


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
def test_a_head_of_ones_own_is_in_no_message(lab, heard, method):
    silos = lab.silos()
    result = train_personal(silos, lab.settings(method))
    sent = {
        name
        for question, _, replies in heard
        for message in (question, *replies.answers.values())
        for name in tensors_of(message)
    }
    assert any("body.0.weight" in name for name in sent)
    assert not any("head" in name for name in sent)
    assert not any(name in HEAD for name in result.parameters)
    assert all(f"personal/{name}" in silo.state for silo in silos for name in HEAD)


def test_fedavg_keeps_nothing_in_silos(lab):
    silos = lab.silos()
    assert "head.weight" in train_personal(silos, lab.settings()).parameters
    assert not any(silo.state for silo in silos)


@pytest.mark.parametrize(("silos", "share", "expected"), [(20, 0.1, 2), (4, 0.1, 1), (5, 0.5, 2), (5, 1.0, 5)])
def test_a_share_of_the_silos_trains_and_all_are_scored(lab, heard, silos, share, expected):
    train_personal(lab.silos(silos, count=4, held=2), lab.settings(rounds=4, participation=share, epochs=1))
    trained = [names for question, names, _ in heard if isinstance(question, LocalSteps)]
    scored = [names for question, names, _ in heard if isinstance(question, Score)]
    assert [len(names) for names in trained] == [expected] * 4
    assert [len(names) for names in scored] == [silos] * 4
    assert share == 1 or len({tuple(names) for names in trained}) > 1  # not always the same ones


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_silos_changes_nothing(lab, method):
    settings = lab.settings(method, participation=0.5)
    one = train_personal(lab.silos(5), settings, seed=2)
    two = train_personal(lab.silos(5)[::-1], settings, seed=2)
    assert one.history == two.history
    assert all(torch.equal(one.parameters[name], two.parameters[name]) for name in one.parameters)


@pytest.mark.parametrize("method", METHODS)
def test_silos_behind_bytes_give_the_same_result(lab, method):
    settings = lab.settings(method)
    sites = {silo.name: Site(silo, Policy(tuple(KINDS), rounds=100)) for silo in lab.silos()}

    def carry(questions, patience):
        return {name: sites[name].answer(questions[name]) for name in list(questions)[::-1]}

    far = train_personal(Federation(RemoteEngine(sites, carry), settings.weighting), settings, seed=3)
    near = train_personal(lab.silos(), settings, seed=3)
    assert not far.failures and far.history == near.history
    assert all(torch.equal(far.parameters[name], near.parameters[name]) for name in near.parameters)
    assert far.ledger.state() == near.ledger.state()


@pytest.mark.parametrize("method", METHODS)
def test_scores_count_held_out_points_and_no_others(lab, method):
    """A silo whose held-out labels are the wrong way round: whoever learns its training points well gets none right."""
    x, label = lab.points([0, 1] * 40, 0)
    test, truth = lab.points([0, 1] * 10, 1)
    settings = lab.settings(method, rounds=6, hidden=(32, 16), tune_epochs=10)
    right = train_personal([Silo("a", x, label, test, held_out_label=truth)], settings)
    wrong = train_personal([Silo("a", x, label, test, held_out_label=1 - truth)], settings)
    assert right.final >= 0.95
    assert wrong.final == pytest.approx(1 - right.final)
    assert all(torch.equal(right.parameters[name], wrong.parameters[name]) for name in right.parameters)


def test_scoring_leaves_the_silos_head_alone(lab):
    settings = lab.settings("fedrep")
    silo = lab.silo("a")
    train_personal([silo], settings)
    before = {name: tensor.clone() for name, tensor in silo.state.items()}
    body = initial_body(settings, 6, 0)
    silo.answer(Envelope(silo.run, 9, 1, Score(body, settings.classes, 5, **asdict(settings.descent))))
    assert all(torch.equal(silo.state[name], tensor) for name, tensor in before.items())


def test_a_silo_that_never_took_part_is_scored_with_a_head_it_fits_first(lab):
    silos = lab.silos(3, pairs=((0, 1),), count=60)
    results = [
        train_personal(silos, lab.settings("fedrep", rounds=1, participation=0.1, hidden=(32, 16), tune_epochs=epochs))
        for epochs in (0, 20)
    ]
    absent = [silo.name for silo in silos if "personal/head.weight" not in silo.state]
    assert len(absent) == 2
    assert all(results[1].accuracy[name] >= 0.9 > results[0].accuracy[name] for name in absent)


def test_held_out_points_follow_their_labels_when_a_silo_splits_its_own(lab):
    from anabranch.data import Points

    silo = Silo("a", None)
    silo.hold_out(0.25, seed=0)
    silo.hold(Points(torch.arange(40.0)[:, None], torch.arange(40)))
    assert torch.equal(silo.held_out[:, 0].long(), silo.held_out_label)
    assert torch.equal(silo.data.x[:, 0].long(), silo.data.label)


def test_one_cluster_is_one_federation_and_more_are_apart(lab):
    settings = lab.settings(participation=0.5)
    alone = train_personal(lab.silos(4, pairs=((0, 1),)), settings, seed=5)
    both = train_clustered(
        lab.silos(8, pairs=((0, 1),) * 4 + ((2, 3),) * 4), {n: int(n > "d") for n in "abcdefgh"}, settings, seed=5
    )
    assert sorted(both.accuracy) == list("abcdefgh")
    assert {name: both.accuracy[name] for name in "abcd"} == alone.accuracy
    assert all(torch.equal(both.parameters[f"0/{name}"], tensor) for name, tensor in alone.parameters.items())
    assert [e for e in both.ledger.entries() if e.silo in "abcd"] == alone.ledger.entries()
    assert both.final == pytest.approx(sum(both.accuracy.values()) / 8)


def test_clusters_win_on_digits_in_pairs_where_few_take_part():
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    x, label = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    silos, clusters = [], {}
    for pair in range(5):
        rows = torch.where((label == 2 * pair) | (label == 2 * pair + 1))[0]
        rows = rows[torch.randperm(len(rows), generator=generator(0, pair))]
        for number, part in enumerate(rows.chunk(4)):
            name = f"silo-{pair}-{number}"
            train, held = part[: 3 * len(part) // 4], part[3 * len(part) // 4 :]
            silos.append(Silo(name, x[train], label[train], x[held], held_out_label=label[held]))
            clusters[name] = pair
    settings = PersonalSettings(hidden=(64, 32), rate=0.05)
    vanilla = train_personal(silos, settings)
    clustered = train_clustered(silos, clusters, settings)
    assert clustered.final >= 0.95 and vanilla.final <= 0.5


def test_results_summarise_rounds(lab):
    result = train_personal(lab.silos(), lab.settings(rounds=12, epochs=1))
    assert len(result.rounds) == len(result.history) == 12
    assert result.final == result.rounds[-1]
    assert result.reported == pytest.approx(sum(result.rounds[2:]) / 10)


def test_a_server_goes_on_from_its_state_to_the_bit(lab):
    settings = lab.settings(rounds=4)

    def server():
        federation = Federation(lab.silos(), settings.weighting)
        federation.open("run", 1)
        return PersonalServer(settings, federation)

    whole = server()
    for progress in whole.run():
        if progress.round == 2:
            kept = {name: tensor.clone() for name, tensor in whole.state().items()}
    resumed = server()
    resumed.load(kept)
    assert [progress.round for progress in resumed.run(done=2)] == [3, 4]
    assert all(torch.equal(whole.parameters[name], resumed.parameters[name]) for name in whole.parameters)


def test_a_silo_that_fails_is_left_out_by_name(lab):
    silos = [*lab.silos(3), lab.silo("z", (0, 5))]
    silos[-1].data.label.fill_(17)
    result = train_personal(silos, lab.settings())
    assert list(result.failures) == ["z"] and "labels outside of 0 to 5" in result.failures["z"]
    assert sorted(result.accuracy) == ["a", "b", "c"]


def test_silos_without_labelled_held_out_points_are_told_so(lab):
    x, label = lab.points([0, 1] * 10, 0)
    with pytest.raises(QuorumError, match="holds no labelled points out"):
        train_personal([Silo("a", x, label, x)], lab.settings())


def test_silos_refuse_small_groups_great_work_and_what_is_no_network(lab):
    settings = lab.settings("fedper", rounds=1)
    body = initial_body(settings, 6, 0)

    def why(silo, parameters=body, **changes):
        numbers = {"classes": 6, "epochs": 5, "head_epochs": 0, **asdict(settings.descent), **changes}
        silo.begin(0)
        with pytest.raises(Exception) as caught:
            silo.answer(
                Envelope("run", 1, derive(0, repr(changes), len(parameters)), LocalSteps(parameters, **numbers))
            )
        return type(caught.value).__name__, str(caught.value)

    assert "fewer than 100 points" in why(lab.silo("a", smallest_group=100))[1]
    assert "it would take" in why(lab.silo("a"), epochs=2**40)[1]
    assert why(lab.silo("a"), rate=-1.0)[0] == "UsageError"
    for odd in (
        {},
        {"body.0.weight": body["body.0.weight"]},
        {**body, "head.weight": torch.zeros(6, 8)},
        {**body, "head.weight": torch.zeros(5, 8), "head.bias": torch.zeros(5)},
        {**body, "body.1.weight": torch.zeros(8, 15)},
        {**body, "body.0.weight": torch.zeros(16, 7, 5, 5)},
        {"body.0.weight": torch.zeros(4, 6, 1, 1), "body.0.bias": torch.zeros(4)},
        {"body.0.weight": torch.zeros(0, 6), "body.0.bias": torch.zeros(0)},
        {**body, "body.0.weight": torch.zeros(16, 0, 5, 5)},
        {name: tensor.double() for name, tensor in body.items()},
    ):
        assert why(lab.silo("a"), odd)[0] == "MessageError", odd.keys()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "fedavgg"}, "did you mean 'fedavg'"),
        ({"network": "resnet"}, "no network 'resnet'"),
        ({"weighting": "sizes"}, "did you mean 'size'"),
        ({"rounds": 0}, "rounds is 0"),
        ({"participation": 0.0}, r"lies in \(0, 1\]"),
        ({"participation": 1.5}, r"lies in \(0, 1\]"),
        ({"epochs": 0}, "epochs is 0"),
        ({"method": "fedrep", "head_epochs": 5}, "at least one each"),
        ({"tune_epochs": -1}, "tune_epochs is -1"),
        ({"batch": 0}, "at least one"),
        ({"rate": 0.0}, "positive number"),
        ({"momentum": 1.0}, r"lie in \[0, 1\)"),
        ({"rate": 1e300}, "positive number up to"),
        ({"weight_decay": -1e-4}, r"lie in \[0, 1e\+06\]"),
        ({"hidden": ()}, "one or more widths"),
        ({"classes": 1}, "classes is 1"),
    ],
)
def test_bad_settings_are_answered_in_sentences(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        PersonalSettings(**options)


def test_a_federation_that_disagrees_with_the_settings_is_refused(lab):
    settings = lab.settings()
    for options in ({"weighting": "size"}, {"weighting": "uniform", "participation": Participation("random", 1)}):
        with pytest.raises(UsageError, match="weigh silos 'uniform'"):
            train_personal(Federation(lab.silos(), **options), settings)
    with pytest.raises(UsageError, match="not open yet"):
        PersonalServer(settings, Federation(lab.silos(), "uniform"))
    with pytest.raises(UsageError, match="no square images"):
        train_personal(lab.silos(), lab.settings(network="cnn"))
    with pytest.raises(UsageError, match=r"\(d\)"):
        train_clustered(lab.silos(), {"a": 0, "b": 0, "c": 1}, settings)
