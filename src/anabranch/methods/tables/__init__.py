"""Tables become points without being pooled: one summary up, one encoder down."""

from anabranch.methods.tables._exchange import Encode, Summarise, SummaryReply, agree, hand_out

__all__ = ["Encode", "Summarise", "SummaryReply", "agree", "hand_out"]
