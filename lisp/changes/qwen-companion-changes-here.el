;;; qwen-companion-changes-here.el --- What agents changed in the file at point  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Find the unseen changes of agents in the file of the current buffer, and go
;; from one to the next, across files.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-changes-signs)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)

;;; Positions of changes

(defun qwen-companion-changes-here--load-turns ()
  "Load each turn of the journal."
  (when (eq 'off (qwen-companion-state))
    (user-error "The companion is off and has no journal; turn it on with M-x qwen-companion-mode"))
  (unless (qwen-companion-journal-watched-p)
    (qwen-companion-journal-watch 'here t)
    (qwen-companion-backend-wait #'qwen-companion-journal-turns 2)))

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

(defun qwen-companion-changes-here-turn ()
  "Return the turn of the change at point in a file, its id.
Signal a `user-error' if there is none."
  (let ((path (or (qwen-companion-changes-signs-path (current-buffer))
                  (user-error "Not in a file of a project"))))
    (qwen-companion-changes-here--load-turns)
    (or (cl-loop for overlay in (overlays-in (line-beginning-position) (line-end-position))
                 thereis (overlay-get overlay 'qwen-companion-changes-turn))
        (qwen-companion-turn-id
         (cl-find 'agent (qwen-companion-journal-turns-of path)
                  :key #'qwen-companion-turn-who))
        (user-error "No agent has changed this file"))))

(defun qwen-companion-changes-here-next (count)
  "Go to the COUNTth unseen change from point, in this file or another one."
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
                    (if (> count 0) "further" "earlier")))))))

(provide 'qwen-companion-changes-here)
;;; qwen-companion-changes-here.el ends here
