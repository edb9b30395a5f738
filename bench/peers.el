;;; peers.el --- A long answer in our chat and in other packages  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Loaded by bench/peers.py.  Each package gets the same text in the same
;; pieces, by its own functions for a piece of an answer, in a window whose
;; point follows the text; what has come is displayed before the next piece.

;;; Code:

(require 'cl-lib)
(require 'map)
(require 'qwen-companion)
(require 'qwen-companion-chat)

(declare-function agent-shell-markdown-replace-markup "ext:agent-shell-markdown" (&rest arguments))
(declare-function agent-shell-ui-make-fragment-model "ext:agent-shell-ui" (&rest arguments))
(declare-function agent-shell-ui-update-fragment "ext:agent-shell-ui" (model &rest arguments))
(declare-function gptel-auto-scroll "ext:gptel" ())
(declare-function gptel-curl--stream-insert-response "ext:gptel" (response info &optional raw))
(declare-function markdown-mode "ext:markdown-mode" ())

(defconst peers--piece 2000
  "Characters of a piece.")

(defconst peers--tick 0.02
  "Seconds between two calls of the timer while text streams.")

(defconst peers--limit 40
  "Seconds of the processor after which a stream is given up.")

(defvar peers-result nil
  "What the last call of `peers-run' measured, nil as long as it runs.")

(defun peers--processor ()
  "Return the seconds that Emacs has had of the processor."
  (float-time (get-internal-run-time)))

(defun peers--stream (text feed)
  "Give FEED the pieces of TEXT.
Return a list: the seconds of the processor that took, by how many
milliseconds of it the 99th of 100 calls of a timer came late, and the
share of TEXT that came before the limit."
  (garbage-collect)
  (let* ((start (peers--processor))
         (ticks (list start))
         (timer (run-at-time peers--tick peers--tick
                             (lambda () (push (peers--processor) ticks))))
         (done 0))
    (unwind-protect
        (while (and (< done (length text))
                    (< (- (peers--processor) start) peers--limit))
          (let ((end (min (length text) (+ done peers--piece))))
            (funcall feed (substring text done end))
            (goto-char (point-max))
            (redisplay)
            ;; Timers run.
            (accept-process-output nil 0.001)
            (setq done end)))
      (cancel-timer timer))
    (let ((late (sort (cl-loop for (later earlier) on ticks while earlier
                               collect (* 1000 (max 0 (- later earlier peers--tick))))
                      #'<)))
      (list (- (peers--processor) start)
            (nth (floor (* 0.99 (length late))) late)
            (/ (float done) (length text))))))

(defun peers-ours (text)
  "Stream TEXT into a chat."
  (cl-letf (((symbol-function 'qwen-companion-backend-call) #'always))
    (with-current-buffer (qwen-companion-chat-make-buffer nil)
      (switch-to-buffer (current-buffer))
      (unwind-protect
          (peers--stream
           text (lambda (piece)
                  (qwen-companion-chat--on-turn
                   (list :session "s" :changes
                         (list (list :turn "t" :kind 'text :voice 'answer :text piece))))))
        (let (kill-buffer-query-functions)
          (kill-buffer))))))

(defun peers-gptel (text)
  "Stream TEXT into a buffer as gptel does."
  (require 'gptel)
  (require 'markdown-mode)
  (with-temp-buffer
    (switch-to-buffer (current-buffer))
    (markdown-mode)
    (buffer-enable-undo)
    (add-hook 'gptel-post-stream-hook #'gptel-auto-scroll nil t)
    (let ((info (list :position (point-marker))))
      (peers--stream text (lambda (piece) (gptel-curl--stream-insert-response piece info))))))

(defun peers-agent-shell (text)
  "Stream TEXT into a buffer as agent-shell does."
  (require 'agent-shell-ui)
  (require 'agent-shell-markdown)
  (with-temp-buffer
    (switch-to-buffer (current-buffer))
    (peers--stream
     text
     (lambda (piece)
       (let ((body (map-elt (agent-shell-ui-update-fragment
                             (agent-shell-ui-make-fragment-model
                              :namespace-id 1 :block-id "answer" :body piece)
                             :append t :navigation 'never :no-undo t)
                            :body))
             (inhibit-read-only t)
             (buffer-undo-list t))
         (save-restriction
           (narrow-to-region (map-elt body :start) (map-elt body :end))
           (agent-shell-markdown-replace-markup)))))))

(defun peers-run (function file)
  "Call FUNCTION with the text of FILE soon; `peers-result' has what it returns.
That is a message when it failed."
  (setq peers-result nil)
  (run-at-time 0 nil (lambda ()
                       (let ((text (with-temp-buffer
                                     (insert-file-contents file)
                                     (buffer-string))))
                         (setq peers-result
                               (condition-case err
                                   (funcall function text)
                                 (error (error-message-string err))))))))

(provide 'peers)
;;; peers.el ends here
