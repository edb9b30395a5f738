;;; no-lockfiles.el --- No lock files, no auto-save  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq create-lockfiles nil
      auto-save-default nil)

;;; no-lockfiles.el ends here
