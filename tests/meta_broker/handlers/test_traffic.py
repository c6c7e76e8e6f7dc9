"""Topics in metrics: the first ones by name, and all others together, however many names clients make up."""

from meta_broker.handlers.traffic import OTHER, TOPICS_MAX, Traffic


def test_names_are_bounded_and_stay() -> None:
    traffic = Traffic()
    for number in range(TOPICS_MAX + 3):
        traffic.received(f"t{number}", 1, 10)
        traffic.sent(f"t{number}", 2, 20)
    totals = dict(traffic.totals())
    assert len(totals) == TOPICS_MAX + 1
    assert (totals["t0"].messages_in, totals["t0"].bytes_out) == (1, 20)
    assert (totals[OTHER].messages_in, totals[OTHER].messages_out, totals[OTHER].bytes_in) == (3, 6, 30)
    assert traffic.labels.of("t0") == "t0"
