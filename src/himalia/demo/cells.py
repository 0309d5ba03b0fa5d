"""The cells that the demo runs on its kernel, the last two again every minute. Read as text, never imported.

They need nothing but Python. All figures are computed; only the pause is there so that one can watch.
"""

# %% Deliveries of a shop: how far, how heavy, and after how many days they arrived
import random
import time

chance = random.Random()


def deliveries(count: int) -> list[tuple[float, float, float]]:
    """Distance in 100 km, weight in 10 kg, and the days it took, which nobody can quite foretell."""
    made = []
    for _ in range(count):
        distance, weight = chance.uniform(0, 8), chance.uniform(0, 3)
        made.append((distance, weight, 0.9 + 0.35 * distance + 0.6 * weight + chance.gauss(0, 0.2)))
    return made


# %% A burst of output: two thousand of them
for number, (distance, weight, days) in enumerate(deliveries(2000)):
    print(f"delivery {number:4}: {distance * 100:3.0f} km, {weight * 10:4.1f} kg, {days:.1f} days")

# %% A mistake: nobody has written down how heavy this one was
note = {"distance": 3.2, "days": 2.5}
print(f"{note['days']} days for {note['weight']} kg")


# %% A curve, drawn as SVG, which needs no library
class Curve:
    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"a curve from {self.values[0]:.2f} down to {self.values[-1]:.2f}"

    def _repr_svg_(self) -> str:
        most = max(self.values)
        points = " ".join(
            f"{40 + 12 * n},{180 - 160 * value / most:.1f}" for n, value in enumerate(self.values)
        )
        marks = "".join(
            f'<path d="M40 {180 - 160 * share:.0f}h480" stroke="#8886"/>'
            f'<text x="34" y="{184 - 160 * share:.0f}" text-anchor="end">{most * share:.1f}</text>'
            for share in (0, 0.5, 1)
        )
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" width="540" height="210" font-family="sans-serif" '
            f'font-size="11" fill="#8a8a96">{marks}<text x="280" y="202" text-anchor="middle">pass</text>'
            f'<polyline points="{points}" fill="none" stroke="#6e6ade" stroke-width="3"/></svg>'
        )


# %% Learn how the days come about: gradient descent on the latest deliveries, 40 times over all of them
latest, losses = deliveries(400), []
base = per_distance = per_weight = 0.0
for epoch in range(1, 41):
    squares = 0.0
    for distance, weight, days in latest:
        miss = base + per_distance * distance + per_weight * weight - days
        squares += miss * miss
        base -= 0.0008 * miss
        per_distance -= 0.0008 * miss * distance
        per_weight -= 0.0008 * miss * weight
    losses.append(squares / len(latest))
    bar = "█" * (epoch // 2) + "░" * (20 - epoch // 2)
    print(f"\rtraining \x1b[36m{bar}\x1b[0m {epoch}/40  loss \x1b[1m{losses[-1]:.3f}\x1b[0m", end="")
    time.sleep(0.15)  # so that one can watch
print(f"\ndays = {base:.2f} + {per_distance:.2f} for each 100 km + {per_weight:.2f} for each 10 kg")

# %% How the loss fell
Curve(losses)
