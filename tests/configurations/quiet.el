;;; quiet.el --- No bell, and twenty messages kept  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq echo-keystrokes 0
      ring-bell-function #'ignore
      message-log-max 20
      inhibit-startup-screen t)

;;; quiet.el ends here
