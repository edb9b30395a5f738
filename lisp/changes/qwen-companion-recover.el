;;; qwen-companion-recover.el --- Bring back what a CLI's own rewind took  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A rewind in the terminal of a CLI, or in another client of a daemon,
;; restores whole files and overwrites what the user has saved since.  The
;; journal records the lost edits as a separate turn.  This file reports it
;; to the user, and `qwen-companion-recover' restores the edits.

;;; Code:

(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-changes-items)
(require 'qwen-companion-changes-undo)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-terminal)
(require 'qwen-companion-undo)
(require 'qwen-companion-untrusted)

;;;###autoload
(defun qwen-companion-recover-on-took (turn)
  "Handle `rewind-took': TURN has the edits that a CLI's own rewind overwrote."
  (let* ((files (qwen-companion-turn-files turn))
         (lines (apply #'+ (mapcar #'qwen-companion-changed-file-deleted files)))
         (names (concat (file-name-nondirectory
                         (qwen-companion-untrusted-path
                          (qwen-companion-changed-file-path (car files))))
                        (when (cdr files)
                          (format " and %d more" (length (cdr files)))))))
    (qwen-companion-backend-notice
     (format "%s's rewind %s; %s"
             (qwen-companion-changes-items-client-name (qwen-companion-turn-client turn))
             ;; With a note, some of the lines are the agent's.
             (if (and (> lines 0) (null (qwen-companion-turn-notes turn)))
                 (format "removed %d of your lines from %s" lines names)
               (format "overwrote your edits in %s" names))
             (with-current-buffer (window-buffer)
               (substitute-command-keys "\\[qwen-companion-recover] restores them"))))))

(defun qwen-companion-recover--turn ()
  "Return the turn with overwritten edits, or nil with a message if there is none.
It is the turn at point in the buffer of changes, else the project's
newest one that is not restored yet."
  (let* ((taken (seq-filter (lambda (turn) (eq 'rewind (qwen-companion-turn-source turn)))
                            (qwen-companion-journal-turns)))
         (here (and (derived-mode-p 'qwen-companion-changes-mode)
                    (cadr (qwen-companion-items-key-at (point)))))
         (root (qwen-companion-terminal-here)))
    (or (seq-find (lambda (turn) (equal here (qwen-companion-turn-id turn))) taken)
        (seq-find (lambda (turn)
                    (and (null (qwen-companion-turn-undone-by turn))
                         (or (derived-mode-p 'qwen-companion-changes-mode)
                             (equal root (qwen-companion-turn-root turn)))))
                  taken)
        (ignore (message "No CLI overwrote your edits in this project by a rewind")))))

;;;###autoload
(defun qwen-companion-recover ()
  "Restore your edits that a CLI's own rewind has overwritten.
They are merged into the current files and buffers; conflicts are shown as
for an undo.  Act on the turn with such edits at point in the buffer of
changes, else on the newest one of the project."
  (interactive)
  (qwen-companion-journal-call-with-turns
   (lambda ()
     (when-let* ((turn (qwen-companion-recover--turn))
                 (id (qwen-companion-turn-id turn))
                 (files (qwen-companion-turn-files turn))
                 (paths (mapcar #'qwen-companion-changed-file-path files)))
       (qwen-companion-undo-confirm paths "bring back" nil)
       (let ((results (qwen-companion-undo-files
                       (list :root (qwen-companion-turn-root turn) :scope 'turn :turn id)
                       files id "Bring back what the rewind took" 'undo)))
         (qwen-companion-changes-items-reload-shown paths)
         (qwen-companion-changes-undo-report
          results (length files) '("brought back" . "These edits are already restored")))))))

(provide 'qwen-companion-recover)
;;; qwen-companion-recover.el ends here
