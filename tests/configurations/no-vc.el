;;; no-vc.el --- No version control in Emacs  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq vc-handled-backends nil)

;;; no-vc.el ends here
