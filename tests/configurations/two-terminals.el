;;; two-terminals.el --- A server with a second terminal  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(defun open-second-terminal ()
  "Open a frame of this Emacs in another window of tmux."
  (call-process "tmux" nil nil nil "new-window" "-d"
                "emacsclient" "-t" "-s" (expand-file-name server-name server-socket-dir)))
(run-at-time 0.5 nil #'open-second-terminal)

;;; two-terminals.el ends here
