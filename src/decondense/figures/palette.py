"""The colours of series: Okabe and Ito's, told apart without red-green vision, and two more, on white and on dark."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#888888")
