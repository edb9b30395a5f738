;;; qwen-companion-review-windows.el --- Windows of a review  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Shared by the front ends: choose a frame for a review, keep a window
;; visible beside it, and restore the windows when it ends, keeping what the
;; user has changed meanwhile.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-buffers)
(require 'qwen-companion-header)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-review-windows-least-height 14
  "Lines a review needs beside another window; with fewer, it fills the frame.")

(defconst qwen-companion-review-windows-tight-height 9
  "Lines below which a review replaces the side windows too.")

(defconst qwen-companion-review-windows-neighbor-height 6
  "Minimum height in lines of the window beside a review.")

(cl-defstruct (qwen-companion-review-windows-view (:copier nil))
  "How a proposal is shown.
CONTROL is the buffer with the review's keys, FRAME the frame of the
review.  NEIGHBOR is the window that stays visible beside it, or nil when
it fills FRAME.  BEFORE is the earlier window configuration of FRAME;
POINT is a marker at point in its selected window, which BEFORE lacks.
PANEL-FRAME is the frame of CONTROL when it has one of its own."
  control frame neighbor before point panel-frame)

(cl-defmethod qwen-companion-review-control (proposal)
  "Return the buffer with the keys of PROPOSAL's review, or nil."
  (qwen-companion-review-windows-control proposal))

(defun qwen-companion-review-windows-control (proposal)
  "Return the buffer with the keys of PROPOSAL's review, or nil."
  (when-let* ((view (qwen-companion-proposal-view proposal))
              (control (qwen-companion-review-windows-view-control view)))
    (and (buffer-live-p control) control)))

;;; Windows as they were

(defun qwen-companion-review-windows-frame (proposal &optional select)
  "Return the frame in which to show PROPOSAL now.
That is the frame of its CLI's terminal, else the selected one; if that
is too small, the largest suitable frame.  With SELECT non-nil, consider
only frames of the user's display."
  (let ((frame (or (when-let* ((frame (qwen-companion-review-arrival-frame proposal))
                               ((or (not select)
                                    (eq (frame-terminal frame) (frame-terminal)))))
                     frame)
                   (selected-frame)))
        (best nil))
    (if (qwen-companion-review-windows--roomy-p frame)
        frame
      (dolist (other (frame-list) (or best frame))
        (when (and (qwen-companion-review-windows--substitute-p other frame)
                   (or (null best)
                       (> (qwen-companion-review-windows--frame-size other)
                          (qwen-companion-review-windows--frame-size best))))
          (setq best other))))))

(defun qwen-companion-review-windows--roomy-p (frame)
  "Return non-nil when FRAME has room for a review and a window beside it."
  (>= (frame-height frame)
      (+ qwen-companion-review-windows-neighbor-height qwen-companion-review-windows-least-height)))

(defun qwen-companion-review-windows--substitute-p (frame small)
  "Return non-nil when FRAME can show a review in place of the frame SMALL."
  (and (not (eq frame small))
       (qwen-companion-review-windows--roomy-p frame)
       (>= (frame-width frame) (frame-width small))
       (eq (frame-terminal frame) (frame-terminal small))
       (eq t (frame-visible-p frame))
       ;; A text terminal shows only one of its frames.
       (memq (tty-top-frame frame) (list nil frame))
       (not (frame-parent frame))
       (not (eq 'only (frame-parameter frame 'minibuffer)))
       (not (frame-parameter frame 'unsplittable))))

(defun qwen-companion-review-windows--frame-size (frame)
  "Return the number of characters that fit into FRAME."
  (* (frame-height frame) (frame-width frame)))

(defun qwen-companion-review-windows--buffers (proposal)
  "Return the live buffers of the review of PROPOSAL."
  (cl-remove-if-not
   #'buffer-live-p
   (list (qwen-companion-proposal-disk-buffer proposal)
         (qwen-companion-proposal-buffer proposal)
         (qwen-companion-proposal-unsaved-copy proposal)
         (qwen-companion-review-windows-control proposal))))

(defun qwen-companion-review-windows--visible-p (proposal frame)
  "Return non-nil when a part of the review of PROPOSAL is in FRAME.
FRAME is as in `get-buffer-window'."
  (cl-some (lambda (buffer) (get-buffer-window buffer frame))
           (qwen-companion-review-windows--buffers proposal)))

(defun qwen-companion-review-windows--neighbor (proposal frame select)
  "Return the window of FRAME that stays visible beside PROPOSAL's review.
That is the selected window, or with SELECT non-nil the window of the
terminal.  If SELECT is a window of FRAME, return it."
  (cond
   ((null select)
    (qwen-companion-review-windows--ordinary (frame-selected-window frame)))
   ((and (windowp select) (eq frame (window-frame select)))
    select)
   (t (cl-some (lambda (buffer) (get-buffer-window buffer frame))
               (qwen-companion-review-terminals proposal)))))

(defun qwen-companion-review-windows-new-view (proposal frame select)
  "Return a new view to show PROPOSAL in FRAME.
SELECT non-nil means that the review will be selected.  If FRAME already
shows the review, keep the record of its earlier windows."
  (let ((old (qwen-companion-proposal-view proposal))
        (view (make-qwen-companion-review-windows-view
               :control (qwen-companion-review-windows-control proposal)
               :frame frame
               :neighbor (qwen-companion-review-windows--neighbor proposal frame select)))
        (selected (frame-selected-window frame)))
    (when old
      (setf (qwen-companion-review-windows-view-panel-frame view)
            (qwen-companion-review-windows-view-panel-frame old)))
    (if (and old
             (eq frame (qwen-companion-review-windows-view-frame old))
             (qwen-companion-review-windows--visible-p proposal frame))
        (setf (qwen-companion-review-windows-view-before view)
              (qwen-companion-review-windows-view-before old)
              (qwen-companion-review-windows-view-point view)
              (qwen-companion-review-windows-view-point old))
      (setf (qwen-companion-review-windows-view-before view)
            (current-window-configuration frame)
            (qwen-companion-review-windows-view-point view)
            (with-current-buffer (window-buffer selected)
              (copy-marker (window-point selected)))))
    view))

(defun qwen-companion-review-windows-set-configuration (configuration)
  "Restore the window CONFIGURATION, and keep the selected frame selected.
An active minibuffer stays selected too, so that typing continues."
  (let ((frame (selected-frame))
        (minibuffer (active-minibuffer-window)))
    (if minibuffer
        (let ((selected (selected-window)))
          (set-window-configuration configuration t t)
          (when (window-live-p selected)
            (select-window selected 'norecord)))
      (set-window-configuration configuration)
      (when (frame-live-p frame)
        (select-frame frame 'norecord)))))

(defun qwen-companion-review-windows--restore-layout (view beside terminals)
  "Restore the windows of VIEW's frame to those before the review.
BESIDE are the windows beside the review.  Keep their buffers and points,
which the user may have changed.  If one of them was selected, keep it or
a window of its buffer selected.  Show the latest output in windows of
TERMINALS, buffers that may have been hidden."
  (when (frame-live-p (qwen-companion-review-windows-view-frame view))
    (let ((typed (car (memq (selected-window) beside)))
          (there (cl-loop for window in beside
                          when (window-live-p window)
                          collect (list window (window-buffer window)
                                        (window-point window)))))
      (qwen-companion-review-windows-set-configuration
       (qwen-companion-review-windows-view-before view))
      (pcase-dolist (`(,window ,buffer ,point) there)
        (when (and (window-live-p window) (buffer-live-p buffer))
          (unless (eq buffer (window-buffer window))
            (set-window-dedicated-p window nil)
            (set-window-buffer window buffer))
          (set-window-point window point)))
      (let ((selected (frame-selected-window
                       (qwen-companion-review-windows-view-frame view)))
            (point (qwen-companion-review-windows-view-point view)))
        (unless (or (assq selected there)
                    (not (eq (window-buffer selected) (marker-buffer point))))
          (set-window-point selected point)))
      (dolist (terminal terminals)
        (dolist (window (get-buffer-window-list
                         terminal nil (qwen-companion-review-windows-view-frame view)))
          (unless (assq window there)
            (set-window-point window
                              (with-current-buffer terminal (point))))))
      (when-let* ((buffer (nth 1 (assq typed there)))
                  ((buffer-live-p buffer)))
        (let ((window (if (window-live-p typed)
                          typed
                        (get-buffer-window buffer))))
          (if window
              (select-window window)
            (pop-to-buffer buffer)))))))

(defun qwen-companion-review-windows--restore-tab (proposal view)
  "Remove PROPOSAL's review from an unselected tab of the frame of VIEW.
When the tab is selected again, it looks as before the review."
  (when-let* ((frame (qwen-companion-review-windows-view-frame view))
              ((frame-live-p frame))
              (tab (cl-some (lambda (buffer)
                              (tab-bar-get-buffer-tab buffer frame t))
                            (qwen-companion-review-windows--buffers proposal)))
              (configuration (assq 'wc tab)))
    (setcdr configuration (qwen-companion-review-windows-view-before view))
    (when-let* ((point (assq 'wc-point tab)))
      (setcdr point (qwen-companion-review-windows-view-point view)))))

(defun qwen-companion-review-windows-restore (proposal)
  "Remove the review of PROPOSAL from the windows that show it.
Windows in which the user has shown other buffers since stay."
  (when-let* ((view (qwen-companion-proposal-view proposal)))
    (let ((frame (qwen-companion-review-windows-view-frame view)))
      (cond
       ((not (frame-live-p frame)))
       ((qwen-companion-review-windows--visible-p proposal frame)
        (let ((beside (cl-remove-if (lambda (window)
                                      (let ((buffer (window-buffer window)))
                                        (memq (or (buffer-local-value
                                                   'qwen-companion-header-help-origin buffer)
                                                  buffer)
                                              (qwen-companion-review-windows--buffers proposal))))
                                    (window-list frame 'no-minibuffer)))
              (terminals (qwen-companion-review-terminals proposal)))
          (qwen-companion-review-windows--restore-layout view beside terminals)
          (when (and (active-minibuffer-window)
                     read-minibuffer-restore-windows)
            (qwen-companion-review-windows--after-minibuffer
             (lambda ()
               (qwen-companion-review-windows--restore-layout view beside terminals))))))
       (t
        (qwen-companion-review-windows--restore-tab proposal view))))))

(defun qwen-companion-review-windows--after-minibuffer (function)
  "Call FUNCTION after the active minibuffer exits.
Emacs restores the windows of all frames then."
  (letrec ((leave (lambda ()
                    (remove-hook 'minibuffer-exit-hook leave)
                    (run-at-time 0 nil function))))
    (add-hook 'minibuffer-exit-hook leave)))

;;; Windows of a review

(defun qwen-companion-review-windows--clear (neighbor)
  "Delete all windows of NEIGHBOR's frame but NEIGHBOR and side windows.
Return the remaining window: NEIGHBOR unless that is a side window."
  (if (window-parameter neighbor 'window-side)
      (let ((windows (cl-remove-if
                      (lambda (window) (window-parameter window 'window-side))
                      (window-list (window-frame neighbor) 'no-minibuffer))))
        (mapc #'delete-window (cdr windows))
        (car windows))
    (delete-other-windows neighbor)
    neighbor))

(defun qwen-companion-review-windows--ordinary (window)
  "Return WINDOW, or if that is a minibuffer, another window of its frame."
  (if (not (window-minibuffer-p window))
      window
    (let ((before (minibuffer-selected-window)))
      (if (and before (eq (window-frame before) (window-frame window)))
          before
        (frame-first-window (window-frame window))))))

(defun qwen-companion-review-windows-height (proposal frame select)
  "Return the height in lines for a review of PROPOSAL in FRAME.
SELECT non-nil means that the review will be selected."
  (let ((height (window-total-height (frame-root-window frame))))
    (if (qwen-companion-review-windows--neighbor proposal frame select)
        (- height (qwen-companion-review-windows--neighbor-lines height))
      height)))

(defun qwen-companion-review-windows-beside-p (proposal)
  "Return non-nil when the review of PROPOSAL has room beside the selected window.
Otherwise it would replace that window."
  (let ((frame (qwen-companion-review-windows-frame proposal))
        (selected (qwen-companion-review-windows--ordinary (selected-window))))
    (or (not (eq frame (window-frame selected)))
        (let ((height (window-total-height (window-main-window frame))))
          (if (window-parameter selected 'window-side)
              (>= height qwen-companion-review-windows-tight-height)
            (> (qwen-companion-review-windows--neighbor-lines height) 0))))))

(defun qwen-companion-review-windows--neighbor-lines (height)
  "Return the height of the window beside a review, of HEIGHT lines for both."
  (if (< height (+ qwen-companion-review-windows-neighbor-height
                   qwen-companion-review-windows-least-height))
      0
    (max qwen-companion-review-windows-neighbor-height
         (min (/ height 3)
              (- height qwen-companion-review-windows-least-height)))))

(defun qwen-companion-review-windows-make-room (view)
  "Return a window that can be divided for the review with VIEW.
The neighbor of VIEW stays visible if there is room for both."
  (let* ((neighbor (and (window-live-p (qwen-companion-review-windows-view-neighbor view))
                        (qwen-companion-review-windows-view-neighbor view)))
         (area (qwen-companion-review-windows--clear
                (or neighbor (qwen-companion-review-windows--ordinary (selected-window)))))
         (height (window-total-height area)))
    (cond
     ((and neighbor (not (eq area neighbor))
           (>= height qwen-companion-review-windows-tight-height))
      area)
     ((and (eq area neighbor)
           (> (qwen-companion-review-windows--neighbor-lines height) 0))
      (split-window neighbor (qwen-companion-review-windows--neighbor-lines height)
                    'above))
     (t
      (let ((ignore-window-parameters t))
        (delete-other-windows area))
      area))))

(defun qwen-companion-review-windows-show-buffer (window buffer)
  "Show BUFFER in WINDOW, even if that is dedicated."
  (set-window-dedicated-p window nil)
  (set-window-buffer window buffer))

(defun qwen-companion-review-windows-show-in (frame view buffer)
  "Show BUFFER in FRAME, with room made for VIEW, unless it is there already."
  (with-selected-frame frame
    (unless (get-buffer-window buffer frame)
      (qwen-companion-review-windows-show-buffer
       (qwen-companion-review-windows-make-room view) buffer))))

(defun qwen-companion-review-windows-select (proposal select selected shown &optional buffer)
  "Select a window after the review of PROPOSAL was laid out.
If SELECT is non-nil, select the window of BUFFER, by default the control
buffer.  Else select SELECTED, the previous window, which showed the
buffer SHOWN; if the review now uses that window, select the window of
the control buffer, since the keys of a review do not work in all sides."
  (if (and (not select)
           (window-live-p selected)
           (eq shown (window-buffer selected)))
      (select-window selected)
    (let ((window (get-buffer-window
                   (or buffer (qwen-companion-review-windows-control proposal)) t)))
      (select-frame-set-input-focus (window-frame window))
      (select-window window))))

;;; Waiting for the next review

(defvar qwen-companion-waiting-mode-map
  (qwen-companion-buffers-keymap
   :parent special-mode-map
   "q" #'qwen-companion-review-stop-waiting)
  "Keymap of a buffer in which the next proposal is awaited.")

(define-derived-mode qwen-companion-waiting-mode special-mode "Review"
  "Major mode of a buffer in which the next proposal is awaited.
See Info node `(qwen-companion)Reviews'.

\\{qwen-companion-waiting-mode-map}"
  :interactive nil
  (qwen-companion-header-keep-keys)
  (add-hook 'kill-buffer-hook #'qwen-companion-review-stop-waiting nil t))

(cl-defmethod qwen-companion-review-show ((_style (eql 'waiting)) proposal select)
  "Show that the next proposal of the CLI of PROPOSAL is awaited.
Select the window; SELECT is its slot, see `qwen-companion-review-slot'."
  (let* ((frame (qwen-companion-review-windows-frame proposal select))
         (view (qwen-companion-review-windows-new-view proposal frame select))
         (buffer (qwen-companion-proposal-make-buffer proposal "next")))
    (with-current-buffer buffer
      (qwen-companion-waiting-mode)
      (setq qwen-companion-proposal-current proposal)
      (let ((inhibit-read-only t))
        (insert (format "Accepted %s.\n\nThe next change by %s will appear here.\n"
                        (qwen-companion-proposal-display-path proposal)
                        (qwen-companion-untrusted-text
                         (qwen-companion-proposal-client proposal)))
                (substitute-command-keys
                 "\\[qwen-companion-review-stop-waiting] restores the previous windows.\n")))
      (set-buffer-modified-p nil)
      (goto-char (point-min)))
    (setf (qwen-companion-proposal-view proposal) view
          (qwen-companion-review-windows-view-control view) buffer)
    (with-selected-frame frame
      (qwen-companion-review-windows-show-buffer
       (qwen-companion-review-windows-make-room view) buffer))
    (qwen-companion-review-windows-select proposal t nil nil)))

(cl-defmethod qwen-companion-review-hide ((_style (eql 'waiting)) proposal)
  "Stop showing that a proposal is awaited after PROPOSAL."
  (qwen-companion-review-windows-remove proposal))

;;; Visibility

(defun qwen-companion-review-windows-remove (proposal)
  "Restore the windows, and kill the buffer with the keys of PROPOSAL's review."
  (qwen-companion-review-windows-restore proposal)
  (when-let* ((buffer (qwen-companion-review-windows-control proposal)))
    (kill-buffer buffer))
  (qwen-companion-review-windows-forget-view proposal))

(cl-defmethod qwen-companion-review-slot (_style proposal)
  "Return the window that stays visible beside the review of PROPOSAL, else t."
  (or (when-let* ((view (qwen-companion-proposal-view proposal)))
        (qwen-companion-review-windows-view-neighbor view))
      t))

(cl-defmethod qwen-companion-review-visible-p (_style proposal)
  "Return non-nil when a part of the review of PROPOSAL is on the screen."
  (cl-some #'qwen-companion-review-visible-window
           (qwen-companion-review-windows--buffers proposal)))

(cl-defmethod qwen-companion-review-frame (_style proposal)
  "Return the frame in which PROPOSAL was shown last, live or not."
  (when-let* ((view (qwen-companion-proposal-view proposal)))
    (qwen-companion-review-windows-view-frame view)))

(defun qwen-companion-review-windows-forget-view (proposal)
  "Forget the view of PROPOSAL and delete its panel frame."
  (when-let* ((view (qwen-companion-proposal-view proposal)))
    (setf (qwen-companion-proposal-view proposal) nil)
    (when (frame-live-p (qwen-companion-review-windows-view-panel-frame view))
      (delete-frame (qwen-companion-review-windows-view-panel-frame view)))))

(defun qwen-companion-review-windows-control-killed ()
  "Put the review aside because its control buffer is being killed."
  (let ((proposal qwen-companion-proposal-current))
    (when (and (eq (qwen-companion-proposal-state proposal) 'shown)
               (eq (current-buffer) (qwen-companion-review-windows-control proposal)))
      (setf (qwen-companion-proposal-state proposal) 'pending)
      (qwen-companion-review-windows-restore proposal)
      (qwen-companion-review-windows-forget-view proposal)
      (qwen-companion-review-schedule))))

(provide 'qwen-companion-review-windows)
;;; qwen-companion-review-windows.el ends here
