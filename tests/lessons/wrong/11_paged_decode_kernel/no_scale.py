"""The dot product is the score.

Words: were not multiplied by SCALE
"""

EDITS = {
    """scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * SCALE
        if SOFTCAP is not None:
            scores = SOFTCAP * _tanh(scores / SOFTCAP)
        visible = inside[None, :] & (positions[None, :] <= query_positions[:, None])
        if WINDOW is not None:
            visible = visible & (positions[None, :] > query_positions[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))""": (
        """scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        scores = tl.where(inside[None, :], scores, float("-inf"))"""
    ),
}
