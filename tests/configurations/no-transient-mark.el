;;; no-transient-mark.el --- No transient mark  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Without select: without `transient-mark-mode' a region is not shown, and is no selection

(transient-mark-mode -1)

;;; no-transient-mark.el ends here
