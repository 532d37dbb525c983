"""What metrics are called in tables, after docs/glossary.md, and how figures are written; JSON keeps both plain."""

from __future__ import annotations

NAMES = {
    "w2": "W2",
    "w2_floor": "W2 floor",
    "sliced_w2": "sliced W2",
    "sliced_w2_floor": "sliced W2 floor",
    "energy": "normalised path energy",
    "cost_ratio": "cost ratio",
    "source_error": "source error",
    "source_error_floor": "source error, floor",
    "usage_tv": "usage",
    "usage_tv_uniform": "usage, floor",
    "share_error": "share error",
    "chi_square": "χ²",
    "duality_gap": "duality gap",
    "fit_seconds": "seconds of fitting",
    "flow_seconds": "seconds of training the flow",
    "assign_seconds": "seconds of assigning noises",
    "potential_seconds": "seconds of training the potential",
    "sampling_seconds": "seconds of sampling",
    "lemma2_ratio": "Lemma 2",
    "silo_distance": "silo distance",
    "plan_distance": "plan distance",
    "best_excess": "least excess",
    "time_ratio": "time ratio",
    "upper_wrong": "wrong bounds, upper",
    "lower_wrong": "wrong bounds, lower",
    "debiased_error": "debiased error",
    "disorder_value": "disorder, value",
    "disorder_debiased": "disorder, debiased",
    "numbers_ratio": "traffic",
    "own_accuracy": "own accuracy",
    "gradient_gap": "gradient gap",
    "fid": "FID",
    "fid_infinity": "FID_∞",
    "fid_train": "FID, training images",
    "fid_test": "FID, test images",
    "fid_train_test": "FID, training against test images",
    "kid_train": "KID, training images",
    "kid_test": "KID, test images",
    "inception_score": "Inception Score",
    "pixels_train": "distance of pixels, training images",
    "pixels_test": "distance of pixels, test images",
    "curve_fid_train": "FID while training, training images",
    "curve_fid_test": "FID while training, test images",
    "curve_pixels_train": "distance of pixels while training, training images",
    "curve_pixels_test": "distance of pixels while training, test images",
    "memorised_pixels": "memorised (pixels)",
    "flow_rounds": "rounds of the flow",
    "seconds_50k": "seconds for 50 000 samples",
    "fid_features": "feature distance",
    "precision_features": "precision (features)",
    "recall_features": "recall (features)",
    "judge_accuracy": "judge accuracy",
    "judge_error": "judge error",
    "conformity_novel_joint": "conformity, novel as a whole",
    "conformity_novel_apart": "conformity, novel with terms apart",
    "conformity_novel_plain": "conformity, novel with weights 1",
    "conformity_novel_guided": "conformity, novel guided",
    "fid_novel_joint": "FID, novel as a whole",
    "fid_novel_apart": "FID, novel with terms apart",
    "fid_novel_plain": "FID, novel with weights 1",
    "fid_novel_guided": "FID, novel guided",
    "fid_features_novel_joint": "distance on the judge's features, novel as a whole",
    "fid_features_novel_apart": "distance on the judge's features, novel with terms apart",
    "fid_features_novel_plain": "distance on the judge's features, novel with weights 1",
    "fid_features_novel_guided": "distance on the judge's features, novel guided",
    "passes_forward": "all passes, forward",
    "passes_backward": "all passes, backward",
    "hit": "hit rate",
    "hit_rate": "hit rate",
    "miss": "miss rate",
    "w2_unconditional_floor": "W2 floor, unconditional",
    "theta_units": "communication (θ)",
    "theta_error": "communication, error",
    "theta_units_sampling": "communication for sampling (θ)",
    "forward": "passes, forward",
    "backward": "passes, backward",
    "megabytes_up": "MB up",
    "megabytes_down": "MB down",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "steps_experts": "steps, experts",
    "steps_federated": "steps, federated",
    "steps_peers": "steps, peers",
    "steps_student": "steps, student",
    "share_full": "π, whole labels",
    "share_marginal": "π, single attributes",
    "share_unconditional": "π, none",
    "local_steps": "local steps a round",
    "rate_peers": "rate, peers",
    "penalty_peers": "λ, peers",
    "late": "power of t, penalty",
    "compared": "share compared, penalty",
    "rounds_peers": "rounds, peers",
    "early_peers": "power of 1 − t, peers",
    "late_peers": "power of t, peers",
    "held_peers": "whole labels held, peers",
    "least_peers": "least samples, peers",
    "rate_student": "rate, student",
    "batch_student": "batch, student",
    "penalty_student": "λ, student",
    "additive_since": "additive since",
    "teachers_together": "teachers together",
    "experts_at_once": "experts at once",
    "penalty": "λ",
    "average": "average's decay",
}
SIDES = ("known", "novel", "unconditional")  # of combinations that samples were asked for


def metric_name(metric: str) -> str:
    """A metric's name for people; its own where the glossary has no other.

    >>> metric_name("fid_novel"), metric_name("w2_floor"), metric_name("reach")
    ('FID, novel', 'W2 floor', 'reach')
    >>> metric_name("weight_novel_digit")
    'weight of digit, novel'
    """
    if metric in NAMES:
        return NAMES[metric]
    if metric.startswith("weight_") and metric.count("_") > 1:
        _, side, attribute = metric.split("_", 2)
        return f"weight of {attribute}, {side}"
    stem, _, side = metric.rpartition("_")
    return f"{NAMES.get(stem, stem)}, {side}" if stem and side in SIDES else metric


def figure(value: float) -> str:
    """Four digits, and large figures in full: a table has no room for powers of ten.

    >>> figure(9.1432), figure(0.00361), figure(310_865.2)
    ('9.143', '0.00361', '310865')
    """
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
