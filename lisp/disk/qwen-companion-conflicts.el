;;; qwen-companion-conflicts.el --- Conflict markers stay out of files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A write to disk and the user's unsaved text may change the same lines.
;; Following marks that as a conflict in the buffer.  The markers are for the
;; user, not for the file: a buffer with markers is not saved unless the user
;; insists with a prefix argument.
;;
;; The text is searched for markers each time, so they can be resolved in any
;; way, and that can be undone.  The guard stays in the buffer after following
;; has ended.

;;; Code:

(require 'cl-lib)
(require 'smerge-mode)
(require 'subr-x)

(defvar auto-save-visited-mode)

(defconst qwen-companion-conflicts-labels '("yours" "before" "on disk")
  "Labels of the three texts of a conflict.")

(defconst qwen-companion-conflicts-undo-labels '("yours" "before" "undone")
  "Labels of the three texts of a conflict with an undone change.")

(defconst qwen-companion-conflicts-worktree-labels '("yours" "before" "in the worktree")
  "Labels of the texts in a conflict with a merge from a worktree.")

(defconst qwen-companion-conflicts-review-labels '("as written" "as proposed" "as reviewed")
  "Labels of the three texts of a conflict with the user's version of an edit.")

(defconst qwen-companion-conflicts-proposal-labels '("proposed" "before" "on disk")
  "Labels of the three texts of a conflict in a proposal of a CLI.")

(defconst qwen-companion-conflicts--marker
  (let ((labels (list qwen-companion-conflicts-labels
                      qwen-companion-conflicts-proposal-labels
                      qwen-companion-conflicts-undo-labels
                      qwen-companion-conflicts-worktree-labels
                      qwen-companion-conflicts-review-labels)))
    (format "^\\(?:<<<<<<< %s\\|||||||| %s\\|>>>>>>> %s\\)$"
            (regexp-opt (mapcar #'car labels))
            (regexp-opt (mapcar #'cadr labels))
            (regexp-opt (mapcar #'caddr labels))))
  "Regexp for the marker lines of our conflicts.")

(defconst qwen-companion-conflicts--delay 0.2
  "Seconds after a change until the conflicts are counted again.")

(defvar qwen-companion-conflicts-resolved-functions nil
  "Abnormal hook run with a buffer in which no conflict is left.")

(cl-defstruct (qwen-companion-conflicts--state (:copier nil))
  "The unresolved conflicts in a buffer.
BASE, MINE and RESULT are texts: RESULT, with the markers, is the merge
of the user's unsaved MINE, which started from BASE, with the text on
disk.  COUNT is the number of conflicts when last counted, and TIMER will count
them again."
  base mine result (count 0) timer)

(defvar-local qwen-companion-conflicts--state nil
  "The unresolved conflicts in the current buffer, or nil.")
(put 'qwen-companion-conflicts--state 'permanent-local t)

;;; The conflicts of a buffer

(defun qwen-companion-conflicts-begin (base mine result)
  "Guard the current buffer, in which conflicts have just been marked.
RESULT is the merge with the markers, MINE the user's text before it, and
BASE the text from which MINE started.  Return the number of conflicts."
  (setq qwen-companion-conflicts--state
        (make-qwen-companion-conflicts--state :base base :mine mine :result result))
  (qwen-companion-conflicts--guard)
  (if (null qwen-companion-conflicts--state)
      0
    (smerge-mode 1)
    (qwen-companion-conflicts--state-count qwen-companion-conflicts--state)))

(defun qwen-companion-conflicts-origin ()
  "Return the texts of the merge that made the current buffer's conflicts.
That is a list (BASE MINE RESULT) as in `qwen-companion-conflicts-begin',
or nil if there are no conflicts or the texts are unknown."
  (when-let* (((qwen-companion-conflicts-p))
              (state qwen-companion-conflicts--state)
              (result (qwen-companion-conflicts--state-result state)))
    (list (qwen-companion-conflicts--state-base state)
          (qwen-companion-conflicts--state-mine state)
          result)))

(defun qwen-companion-conflicts-p ()
  "Return non-nil when there are unresolved conflicts in the current buffer."
  (and (qwen-companion-conflicts--guarded-p)
       (> (qwen-companion-conflicts--count) 0)))

(defun qwen-companion-conflicts--guarded-p ()
  "Return non-nil if saving the markers in the current buffer is refused."
  (memq #'qwen-companion-conflicts--refuse write-contents-functions))

(defun qwen-companion-conflicts--count ()
  "Return the number of conflicts in the text of the current buffer.
Markers without a complete conflict count as one."
  (save-excursion
    (save-restriction
      (widen)
      (goto-char (point-min))
      (let ((case-fold-search nil)
            (conflicts 0)
            found)
        (while (re-search-forward qwen-companion-conflicts--marker nil t)
          (setq found t)
          (when (eq ?< (char-after (match-beginning 0)))
            (cl-incf conflicts)))
        (if found (max 1 conflicts) 0)))))

(defun qwen-companion-conflicts-update ()
  "Count the conflicts left in the current buffer.
With none, run `qwen-companion-conflicts-resolved-functions'."
  (when-let* ((state qwen-companion-conflicts--state))
    (let ((count (qwen-companion-conflicts--count)))
      (cond
       ((= count 0)
        (qwen-companion-conflicts--forget)
        (run-hook-with-args 'qwen-companion-conflicts-resolved-functions
                            (current-buffer)))
       ((/= count (qwen-companion-conflicts--state-count state))
        (setf (qwen-companion-conflicts--state-count state) count)
        (force-mode-line-update))))))

(put 'qwen-companion-conflicts--changed 'permanent-local-hook t)

(defun qwen-companion-conflicts--changed (&rest _)
  "Schedule counting the conflicts in the current buffer after a change."
  (let ((state qwen-companion-conflicts--state)
        (buffer (current-buffer)))
    (unless (or (null state) (qwen-companion-conflicts--state-timer state))
      (setf (qwen-companion-conflicts--state-timer state)
            (run-at-time qwen-companion-conflicts--delay nil
                         #'qwen-companion-conflicts--recount buffer state)))))

(defun qwen-companion-conflicts--recount (buffer state)
  "Count the conflicts in BUFFER, which has STATE, if it is alive."
  (setf (qwen-companion-conflicts--state-timer state) nil)
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (qwen-companion-conflicts-update))))

;;; Saving

(defun qwen-companion-conflicts--guard ()
  "Refuse to save conflict markers in the current buffer.
Automatic saving skips it instead of failing each time."
  (add-hook 'write-contents-functions #'qwen-companion-conflicts--refuse -90 t)
  (setq-local auto-save-visited-mode nil)
  (add-hook 'after-change-functions #'qwen-companion-conflicts--changed nil t)
  (unless qwen-companion-conflicts--state
    (setq qwen-companion-conflicts--state (make-qwen-companion-conflicts--state)))
  (qwen-companion-conflicts-update))

(defun qwen-companion-conflicts--forget ()
  "Note that the current buffer has no conflicts for now.
Undoing may bring them back, so the guard stays."
  (setq qwen-companion-conflicts--state nil)
  (remove-hook 'after-change-functions #'qwen-companion-conflicts--changed t)
  (kill-local-variable 'auto-save-visited-mode)
  (force-mode-line-update))

(put 'qwen-companion-conflicts--refuse 'permanent-local-hook t)

(defun qwen-companion-conflicts--refuse ()
  "Signal a `user-error' if conflict markers are about to be saved.
Do not do so if the user insists with a prefix argument.  Return nil, so
that saving continues."
  (let ((count (qwen-companion-conflicts--count)))
    (cond
     ((= count 0)
      (qwen-companion-conflicts--forget))
     ((and current-prefix-arg (eq this-command 'save-buffer))
      (remove-hook 'write-contents-functions #'qwen-companion-conflicts--refuse t)
      (qwen-companion-conflicts--forget))
     (t
      (qwen-companion-conflicts--guard)
      ;; The caller saves point by `save-excursion'.
      (run-at-time 0 nil #'qwen-companion-conflicts-show (current-buffer))
      (user-error
       (substitute-command-keys
        "%s has %d unresolved conflict%s with %s: resolve first (\\[smerge-next] goes to the next), or \\[universal-argument] \\[save-buffer] to save the markers")
       (buffer-name) count (if (= count 1) "" "s")
       (qwen-companion-conflicts--other-side)))))
  nil)

(defun qwen-companion-conflicts--other-side ()
  "Return a description of the text that the current buffer conflicts with."
  (save-excursion
    (save-restriction
      (widen)
      (goto-char (point-min))
      (let ((case-fold-search nil))
        (if (re-search-forward
             (format "^>>>>>>> \\(?:%s\\|\\(%s\\)\\)$"
                     (nth 2 qwen-companion-conflicts-undo-labels)
                     (nth 2 qwen-companion-conflicts-review-labels))
             nil t)
            (if (match-beginning 1) "your version in the review" "an undo")
          "the file on disk")))))

;;; Going to conflicts

(defun qwen-companion-conflicts-show (buffer)
  "Go to the first conflict in BUFFER, in the selected window if it is there."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (when-let* ((place (save-excursion
                           (goto-char (point-min))
                           (let ((case-fold-search nil))
                             (and (re-search-forward qwen-companion-conflicts--marker nil t)
                                  (match-beginning 0))))))
        (unless (= place (point))
          (push-mark nil t)
          (goto-char place)
          (when (eq buffer (window-buffer))
            (set-window-point nil place)))))))

(defvar qwen-companion-conflicts--mode-line-map
  (let ((map (make-sparse-keymap)))
    (define-key map [mode-line mouse-1]
      (lambda (event)
        (interactive "e")
        (select-window (posn-window (event-start event)))
        (qwen-companion-conflicts-show (current-buffer))))
    map)
  "Keys on the number of conflicts in the mode line.")

(defun qwen-companion-conflicts-lighter ()
  "Return a text for the mode line about conflicts in the current buffer, or nil."
  (when-let* ((state qwen-companion-conflicts--state))
    (let ((count (qwen-companion-conflicts--state-count state)))
      (propertize (format " %d conflict%s" count (if (= count 1) "" "s"))
                  'face 'warning
                  'help-echo "Your text and a write to disk or an undo change the same lines; resolve that before you save\nmouse-1: go to the first conflict"
                  'mouse-face 'mode-line-highlight
                  'local-map qwen-companion-conflicts--mode-line-map))))

(provide 'qwen-companion-conflicts)
;;; qwen-companion-conflicts.el ends here
