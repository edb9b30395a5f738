;;; qwen-companion-changes-here.el --- Keys for what agents changed, in its files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Go from one unseen change of an agent to the next, across files, with
;; the commands of the buffer of changes: undo, bring back, mark as seen,
;; compare, comment.  With `repeat-mode' on, the last key of each command
;; suffices after the first one.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-changes)
(require 'qwen-companion-changes-signs)
(require 'qwen-companion-header)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-untrusted)

;;; Positions of changes

(defun qwen-companion-changes-here--files ()
  "Return each file with an unseen change of an agent, in alphabetical order."
  (qwen-companion-changes-here--load-turns)
  (sort (delete-dups
         (cl-loop for turn in (qwen-companion-journal-turns)
                  when (eq 'agent (qwen-companion-turn-who turn))
                  append (cl-loop for file in (qwen-companion-turn-files turn)
                                  unless (qwen-companion-changed-file-seen file)
                                  collect (qwen-companion-changed-file-path file))))
        #'string<))

(defun qwen-companion-changes-here--load-turns ()
  "Load each turn of the journal."
  (when (eq 'off (qwen-companion-state))
    (user-error "The companion is off and has no journal; turn it on with M-x qwen-companion-mode"))
  (unless (qwen-companion-journal-watched-p)
    (qwen-companion-journal-watch 'here t)
    (qwen-companion-backend-wait #'qwen-companion-journal-turns 2)))

(defun qwen-companion-changes-here--unseen-changes ()
  "Return each unseen change in the current buffer: (POSITION . TURN), in order."
  (or (qwen-companion-changes-signs-positions)
      (when-let* ((path (qwen-companion-changes-signs-path (current-buffer))))
        (qwen-companion-changes-here--load-turns)
        (when (qwen-companion-changes-signs-unseen path)
          (qwen-companion-buffers-widened
            (cl-loop for (line _ turn seen)
                     in (qwen-companion-journal-reply-spans
                         (qwen-companion-journal-await
                          'journal-spans (list :path path)))
                     unless seen
                     collect (progn
                               (goto-char (point-min))
                               (forward-line (1- line))
                               (cons (point) turn))))))))

(defun qwen-companion-changes-here--next-file (back)
  "Go to the first unseen change in the next file.
With BACK, go to the last one in the previous file.  Return nil and stay
if there is none."
  (let* ((files (cl-remove-if-not #'file-exists-p (qwen-companion-changes-here--files)))
         (here (or (qwen-companion-changes-signs-path (current-buffer)) ""))
         (rest (if back
                   (reverse (cl-remove-if-not (lambda (file) (string< file here)) files))
                 (cl-remove-if-not (lambda (file) (string< here file)) files)))
         found)
    (while (and rest (not found))
      (let* ((buffer (find-file-noselect (pop rest)))
             (places (with-current-buffer buffer
                       (qwen-companion-changes-here--unseen-changes))))
        (when places
          (pop-to-buffer-same-window buffer)
          (push-mark nil t)
          (goto-char (car (if back (car (last places)) (car places))))
          (setq found t))))
    found))

(defun qwen-companion-changes-here--turn ()
  "Return the turn of the change at point, its id, or signal a `user-error'."
  (let* ((path (or (qwen-companion-changes-signs-path (current-buffer))
                   (user-error "Not in a file of a project")))
         (start (line-beginning-position)))
    (qwen-companion-changes-here--load-turns)
    (or (cl-loop for overlay in (overlays-in start (line-end-position))
                 thereis (overlay-get overlay 'qwen-companion-changes-turn))
        (qwen-companion-turn-id
         (cl-find 'agent (qwen-companion-journal-turns-of path)
                  :key #'qwen-companion-turn-who))
        (user-error "No agent has changed this file"))))

(defun qwen-companion-changes-here--call (function)
  "Call FUNCTION with point on the hunk at point, in another buffer."
  (qwen-companion-changes-call-at
   (qwen-companion-changes-here--turn)
   (qwen-companion-changes-signs-path (current-buffer))
   (line-number-at-pos nil t)
   function))

;;; Commands

;;;###autoload
(defun qwen-companion-changes-next-change (&optional count)
  "Go to the next unseen change of an agent, in this file or another one.
Go forward by COUNT changes, back if COUNT is negative."
  (interactive "p")
  (let ((count (or count 1)))
    (dotimes (_ (abs count))
      (let* ((places (mapcar #'car (qwen-companion-changes-here--unseen-changes)))
             (start (line-beginning-position))
             (place (if (> count 0)
                        (cl-find-if (lambda (place) (> place (line-end-position))) places)
                      (cl-find-if (lambda (place) (< place start)) (reverse places)))))
        (cond
         (place
          (unless (<= (point-min) place (point-max))
            (widen))
          (goto-char place))
         ((not (qwen-companion-changes-here--next-file (< count 0)))
          (user-error "No %s unseen change"
                      (if (> count 0) "further" "earlier"))))))))

;;;###autoload
(defun qwen-companion-changes-previous-change (&optional count)
  "Go to the previous unseen change of an agent, or back by COUNT of them."
  (interactive "p")
  (qwen-companion-changes-next-change (- (or count 1))))

;;;###autoload
(defun qwen-companion-changes-undo-here ()
  "Undo the agent's hunk at point, keeping your later edits."
  (interactive)
  (qwen-companion-changes-here--call #'qwen-companion-changes-undo))

;;;###autoload
(defun qwen-companion-changes-bring-back-here ()
  "Bring back the agent's hunk at point, which is undone."
  (interactive)
  (qwen-companion-changes-here--call #'qwen-companion-changes-bring-back))

;;;###autoload
(defun qwen-companion-changes-mark-seen-here ()
  "Mark the agent's hunk at point as seen."
  (interactive)
  (qwen-companion-changes-here--call #'qwen-companion-changes-mark-seen))

;;;###autoload
(defun qwen-companion-changes-copy-patch-here ()
  "Copy the agent's hunk at point as a patch."
  (interactive)
  (qwen-companion-changes-here--call #'qwen-companion-changes-copy-patch))

;;;###autoload
(defun qwen-companion-changes-compare-with-proposal-here ()
  "Show how this file differs from the CLI's proposal."
  (interactive)
  (qwen-companion-changes-here--call #'qwen-companion-changes-compare-with-proposal))

;;;###autoload
(defun qwen-companion-changes-ediff-here ()
  "Compare this file with its text before the turn of the change at point."
  (interactive)
  (qwen-companion-changes-here--call #'qwen-companion-changes-ediff))

;;;###autoload
(defun qwen-companion-changes-comment-here ()
  "Note a comment on the line at point, to be sent to the CLI.
The buffer of \\[qwen-companion-changes] sends it."
  (interactive)
  (let* ((turn (qwen-companion-journal-turn (qwen-companion-changes-here--turn)))
         (path (qwen-companion-changes-signs-path (current-buffer)))
         (line (line-number-at-pos nil t))
         (text (string-trim
                (read-string (format "Comment on %s:%d: "
                                     (file-name-nondirectory
                                      (qwen-companion-untrusted-path path))
                                     line)))))
    (unless (string-empty-p text)
      (qwen-companion-changes-note-comment
       (qwen-companion-turn-root turn) path line
       (concat " " (buffer-substring-no-properties (line-beginning-position)
                                                   (line-end-position)))
       text)
      (message "%s"
               (qwen-companion-header-text
                "Noted; \\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-send-comments] in \\[qwen-companion-changes] sends it")))))

;;;###autoload (autoload 'qwen-companion-changes-command-map "qwen-companion-changes-here" nil nil 'keymap)
(defvar qwen-companion-changes-command-map
  (qwen-companion-buffers-keymap
   "n" #'qwen-companion-changes-next-change
   "p" #'qwen-companion-changes-previous-change
   "k" #'qwen-companion-changes-undo-here
   "u" #'qwen-companion-changes-bring-back-here
   "s" #'qwen-companion-changes-mark-seen-here
   "e" #'qwen-companion-changes-ediff-here
   "c" #'qwen-companion-changes-comment-here
   "w" #'qwen-companion-changes-copy-patch-here
   "=" #'qwen-companion-changes-compare-with-proposal-here)
  "Keymap of commands on agents' changes in the file itself.
Bind it to a key of your own.  With `repeat-mode' on, its keys work by
themselves after one of its commands.")
(fset 'qwen-companion-changes-command-map qwen-companion-changes-command-map)
(map-keymap (lambda (_ command) (put command 'repeat-map 'qwen-companion-changes-command-map))
            qwen-companion-changes-command-map)

(provide 'qwen-companion-changes-here)
;;; qwen-companion-changes-here.el ends here
